"""Which modules the hand-written forms can run: nn.Sequential, nested or not, of layers with a backward of their own.

A user's own Sequential is recognised like a built-in family, so a model is written once, as a plain module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Placed:
    """A layer and where its parameters are found: `path` is "" or ends in a dot."""

    path: str
    module: nn.Module


@dataclass(frozen=True)
class Recognised:
    """The layers in the order in which they are carried out."""

    layers: tuple[Placed, ...]

    @property
    def lowest_with_parameters(self) -> int:
        """Index of the first layer with parameters: nothing below it needs a gradient."""
        return next(i for i, placed in enumerate(self.layers) if any(True for _ in placed.module.parameters()))


def recognise(module: nn.Module) -> Recognised | str:
    """The module's layers, or the reason why it is not recognised."""
    if type(module) is not nn.Sequential and type(module) not in KINDS:
        return f"only nn.Sequential and single layers have hand-written forms, and the module is a {_name(module)}"
    if any(True for _ in module.buffers()):
        return "modules with buffers have no hand-written form"
    if any(not parameter.requires_grad for parameter in module.parameters()):
        return "modules with frozen parameters have no hand-written form"
    placed = list(_walk("", module))
    seen: set[int] = set()
    for layer in placed:
        kind = KINDS.get(type(layer.module))
        where = f"layer {layer.path.rstrip('.') or 'the module itself'!r} ({_name(layer.module)})"
        if kind is None:
            return f"{where} has no hand-written form; these have: {', '.join(sorted(k.__name__ for k in KINDS))}"
        if reason := kind(layer.module):
            return f"{where} {reason}"
        if _is_altered(layer.module):
            return f"{where} has hooks or a parametrization"
        parameters = {id(p) for p in layer.module.parameters()}
        if parameters & seen:
            return f"{where} shares a parameter with another layer"
        seen |= parameters
    return Recognised(tuple(_reordered([p for p in placed if type(p.module) is not nn.Identity])))


def _walk(path: str, module: nn.Module) -> Iterator[Placed]:
    if type(module) is not nn.Sequential:
        yield Placed(path, module)
    elif _is_altered(module):
        # Given out as it is: a Sequential with hooks is not among the kinds, and says so.
        yield Placed(path, module)
    else:
        # Not named_children, which gives a layer that stands in two places only once.
        for name, child in module._modules.items():
            if child is not None:
                yield from _walk(f"{path}{name}.", child)


def _reordered(layers: list[Placed]) -> list[Placed]:
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


def _is_altered(module: nn.Module) -> bool:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks) or "parametrizations" in module._modules


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


KINDS: dict[type[nn.Module], Callable[[Any], str | None]] = {
    nn.Linear: _any,
    nn.Conv2d: _conv2d,
    nn.ReLU: _any,
    nn.Tanh: _any,
    nn.MaxPool2d: _max_pool2d,
    nn.Flatten: _flatten,
    nn.Dropout: _any,
    nn.Identity: _any,
}
"""Layers with a hand-written form, each with a check: None, or what is in the way."""
