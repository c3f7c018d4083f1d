"""Recognises modules that the hand-written trainers can run: one line of layers that have a hand-written backward.

The line is an nn.Sequential, nested or not, or the forward of a class.

A layer may be made of others, which are recognised in turn. A user's own module is recognised like a built-in family,
so a model is written once, as a plain module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from torch import nn

from raysim.client.trainers.straight_line import FlattenTo, NotStraight, straight_line
from raysim.models.changed_torch import METHODS
from raysim.models.layers import CausalSelfAttention, Positions, Residual, Tied
from raysim.models.lstm import Lstm

PARAMETER_CLASSES: tuple[type, ...] = (nn.Parameter,)
"""Classes of parameters that compute as torch's own."""


@dataclass(frozen=True)
class Placed:
    """A layer and where its parameters are found: `path` is "" or ends in a dot. `inner`: the layers it is made of."""

    path: str
    module: nn.Module
    inner: tuple[Placed, ...] = ()


@dataclass(frozen=True)
class Recognised:
    """The layers in the order in which they are carried out."""

    layers: tuple[Placed, ...]

    @property
    def lowest_with_parameters(self) -> int:
        """Index of the first layer with parameters: nothing below it needs a gradient."""
        return lowest_with_parameters(self.layers)


def lowest_with_parameters(layers: Sequence[Placed]) -> int:
    """Index of the first layer with parameters, or their number where none has."""
    having = (i for i, placed in enumerate(layers) if any(True for _ in placed.module.parameters()))
    return next(having, len(layers))


def recognise(module: nn.Module) -> Recognised | str:
    """The module's layers, or the reason why it is not recognised."""
    if any(True for _ in module.buffers()):
        return "modules with buffers have no hand-written layer"
    if any(not parameter.requires_grad for parameter in module.parameters()):
        return "modules with frozen parameters have no hand-written layer"
    paths = {id(child): f"{name}." if name else "" for name, child in module.named_modules()}
    for child in module.modules():
        if why := _altered(child):
            return f"{_where(paths[id(child)], child)} {why}"
    try:
        with _in_training(module):
            placed = _flattened(_placed(paths, module))
    except NotStraight as error:
        return str(error)
    if not placed:
        return f"{_name(module)}.forward calls no layer"
    seen: set[str] = set()
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for layer in every(placed):
        kind = KINDS.get(type(layer.module))
        where = _where(layer.path, layer.module)
        if kind is None:
            return f"{where} has no hand-written layer; these have: {_KNOWN}"
        if reason := kind(layer.module):
            return f"{where} {reason}"
        # Those of a layer made of others are theirs.
        for own, parameter in layer.module.named_parameters() if not layer.inner else ():
            name = f"{layer.path}{own}"
            if names[id(parameter)] != name or name in seen:
                return f"{where} shares a parameter with another layer"
            seen.add(name)
    # Their masks are addressed by their place among the module's.
    dropouts = [id(layer.module) for layer in every(placed) if type(layer.module) is nn.Dropout]
    if dropouts != [id(child) for child in module.modules() if type(child) is nn.Dropout]:
        return "its forward calls its nn.Dropouts in another order than it holds them, or not once each"
    return Recognised(_ordered(placed))


def _placed(paths: Mapping[int, str], module: nn.Module) -> list[Placed]:
    """The layer, or those that a module's forward calls; NotStraight where these are not one line.

    A module may be held by several names: its path is the one that its parameters go by. A function has none.
    """
    path = paths.get(id(module), "")
    if type(module) in MADE_OF:
        inner = [one for name in MADE_OF[type(module)] for one in _placed(paths, module.get_submodule(name))]
        return [Placed(path, module, tuple(_flattened(inner)))]
    if type(module) in (*KINDS, FlattenTo) or (_from_torch(module) and type(module) is not nn.Sequential):
        return [Placed(path, module)]
    try:
        called = straight_line(module)
    except NotStraight as error:
        inside = f" ({path.rstrip('.')!r})" if path else ""
        raise NotStraight(f"{_name(module)}.forward{inside} {error}") from error
    return [one for layer in called for one in _placed(paths, layer)]


def _from_torch(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] == "torch"


def _flattened(placed: Sequence[Placed]) -> list[Placed]:
    """With plain flattening for what is known to be that."""
    plain: list[Placed] = []
    for number, one in enumerate(placed):
        if isinstance(one.module, FlattenTo):
            fed = next((p.module for p in placed[number + 1 :] if any(True for _ in p.module.parameters())), None)
            if not isinstance(fed, nn.Linear) or fed.in_features != one.module.features:
                raise NotStraight(f"view(-1, {one.module.features}) is called, and no Linear behind it takes as many")
            one = Placed("", nn.Flatten())
        plain.append(one)
    return plain


@contextmanager
def _in_training(module: nn.Module) -> Iterator[None]:
    """The mode in which clients train, which the module itself sets for those inside; put back."""
    modes = [(child, child.training) for child in module.modules()]
    module.train()
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training


def _where(path: str, module: nn.Module) -> str:
    name = path.rstrip(".")
    return f"layer {name!r} ({_name(module)})" if name else f"the {_name(module)}"


def every(placed: Sequence[Placed]) -> Iterator[Placed]:
    """All of them, and those that they are made of."""
    for one in placed:
        yield one
        yield from every(one.inner)


def _ordered(layers: Sequence[Placed]) -> tuple[Placed, ...]:
    """As they are carried out, at every level."""
    working = [replace(p, inner=_ordered(p.inner)) for p in layers if type(p.module) is not nn.Identity]
    return tuple(_swapped(working))


def _swapped(layers: list[Placed]) -> list[Placed]:
    """Swap neighbours that commute, for speed: max(relu) = relu(max) over windows a quarter the size, gradients
    included; and dropout works on flattened, contiguous numbers."""
    layers = list(layers)
    swapped = True
    while swapped:
        swapped = False
        for i in range(len(layers) - 1):
            pair = type(layers[i].module), type(layers[i + 1].module)
            if pair in ((nn.ReLU, nn.MaxPool2d), (nn.Dropout, nn.Flatten)):
                layers[i], layers[i + 1] = layers[i + 1], layers[i]
                swapped = True
    return layers


def _altered(module: nn.Module) -> str | None:
    """What makes a module do more than its class's forward, or None."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    if any(hooks) or any(parameter._backward_hooks for parameter in own) or "parametrizations" in module._modules:
        return "has hooks or a parametrization"
    if any(name in vars(module) for name in (*module._parameters, *module._modules)):
        return "has attributes in the place of its parameters or layers"
    if any(name in vars(module) for name in METHODS) or type(module).__call__ is not nn.Module.__call__:
        return "is called in a way of its own"
    if any(type(parameter) not in PARAMETER_CLASSES for parameter in own):
        return "has a parameter of a class of its own"
    return None


def _name(module: nn.Module) -> str:
    return type(module).__name__


def _any(module: Any) -> str | None:
    return None


def _conv2d(module: Any) -> str | None:
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        return "pads by other means than a number of zeros"
    return None if module.groups == 1 else "has groups"


def _max_pool2d(module: Any) -> str | None:
    return "returns indices" if module.return_indices else None


def _flatten(module: Any) -> str | None:
    return None if (module.start_dim, module.end_dim) == (1, -1) else "does not flatten all axes but the batch"


def _embedding(module: Any) -> str | None:
    if module.max_norm is not None:
        return "changes its weights as they are read (max_norm)"
    return (
        "has gradients of its own kind (scale_grad_by_freq, sparse)"
        if module.scale_grad_by_freq or module.sparse
        else None
    )


def _attention(module: Any) -> str | None:
    names = MADE_OF[CausalSelfAttention]
    fits = all(type(module.get_submodule(name)) is nn.Linear for name in names)
    return None if fits else f"has other layers than nn.Linear for {', '.join(names)}"


def _tied(module: Any) -> str | None:
    return None if type(module.embedding) is nn.Embedding else "has another layer than nn.Embedding for its words"


KINDS: Mapping[type[nn.Module], Callable[[Any], str | None]] = MappingProxyType(
    {
        nn.Linear: _any,
        nn.Conv2d: _conv2d,
        nn.ReLU: _any,
        nn.Tanh: _any,
        nn.MaxPool2d: _max_pool2d,
        nn.Flatten: _flatten,
        nn.Dropout: _any,
        nn.Identity: _any,
        nn.Embedding: _embedding,
        nn.LayerNorm: _any,
        nn.GroupNorm: _any,
        Lstm: _any,
        Positions: _any,
        CausalSelfAttention: _attention,
        Residual: _any,
        Tied: _tied,
    }
)
"""Layers with a hand-written layer, each with a check: None, or what is in the way."""

_KNOWN = ", ".join(sorted(kind.__name__ for kind in KINDS))

MADE_OF: Mapping[type[nn.Module], tuple[str, ...]] = MappingProxyType(
    {
        CausalSelfAttention: ("query", "key", "value", "out"),
        Residual: ("body",),
        Tied: ("embedding", "body"),
    }
)
"""Layers made of others, and the names of those in the order of their work."""
