"""What a module's `forward` does, where that is one straight line of layers.

The forward is called once with a `Line` in the place of a batch. Modules that it calls note themselves there, and so do
the few functions that stand for a layer (relu, tanh, max_pool2d, flatten and its spellings with view and reshape).
Anything else (a branch, a sum of two ways, a weight of the module's own) is not known to a `Line` and ends the attempt.

Departure from what a call with a batch would do: none that shows. A forward that draws, or that sets an attribute of a
module, may do something else the next time, and is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

Called = tuple[str, nn.Module]
"""A module and its name inside the one that called it; "" for one that stands for a function."""


def straight_line(module: nn.Module) -> list[Called]:
    """The modules that the module's forward calls, in order; what these call can be followed in turn.

    Args:
        module: in any mode; it is called in training mode and left as it was.

    Raises:
        NotStraight: they are not one line; says why.
    """
    called: list[Called] = []
    try:
        with _in_training(module), _noting(module), _unchanged(module):
            end = module(Line(called))
    except NotStraight:
        raise
    except Exception as error:
        # Whatever a forward does that a Line cannot: its own error says it best.
        raise NotStraight(f"is no plain sequence of layers ({type(error).__name__}: {error})") from error
    if not (isinstance(end, Line) and end.is_end_of(called)):
        raise NotStraight("returns something other than what its last layer makes")
    return called


class NotStraight(Exception):
    """What a forward does that no sequence of layers does; the text goes on behind "its forward"."""


class Line:
    """A batch on its way through a forward: it knows what was called so far, and nothing of its values.

    Only the newest one goes on: a second use of an older one is a second way.
    """

    def __init__(self, called: list[Called]) -> None:
        self._called = called
        self._is_end = True

    def is_end_of(self, called: list[Called]) -> bool:
        """Whether all that was called lies behind it."""
        return self._called is called and self._is_end

    def then(self, name: str, layer: nn.Module) -> Line:
        """The same batch behind a layer."""
        if not self._is_end:
            raise NotStraight(f"uses the input of {name or type(layer).__name__!r} twice")
        self._is_end = False
        self._called.append((name, layer))
        return Line(self._called)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Line:
        if (stands_for := _FUNCTIONS.get(function)) is None:
            name = getattr(function, "__name__", str(function))
            raise NotStraight(f"calls {name}, which stands for none of the layers with a hand-written form")
        return stands_for(*args, **(kwargs or {}))

    def relu(self) -> Line:
        """torch.Tensor.relu."""
        return self.then("", nn.ReLU())

    def tanh(self) -> Line:
        """torch.Tensor.tanh."""
        return self.then("", nn.Tanh())

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Line:
        """torch.Tensor.flatten, from the axis behind the batch's."""
        return self.then("", nn.Flatten(start_dim, end_dim))

    def contiguous(self) -> Line:
        """torch.Tensor.contiguous."""
        return self

    def size(self, dim: int | None = None) -> _Shape | _BatchSize:
        """torch.Tensor.size, of which only the batch's is known."""
        return _Shape() if dim is None else _Shape()[dim]

    @property
    def shape(self) -> _Shape:
        """torch.Tensor.shape, likewise."""
        return _Shape()

    def view(self, *shape: Any) -> Line:
        """torch.Tensor.view, where it flattens all axes but the batch's."""
        match shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape:
            case (_BatchSize(), -1 | int()):
                return self.flatten(1)
            case (-1, int() as features) if features > 0:
                return self.then("", FlattenTo(features))
        raise NotStraight("calls view or reshape for more than flattening an example")

    reshape = view


class FlattenTo(nn.Flatten):
    """view(-1, features), which flattens examples of as many numbers, and would merge others with their neighbours: a
    layer behind it has to ask for as many."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features


class _BatchSize:
    """The number of examples of a batch."""


class _Shape:
    """A batch's shape."""

    def __getitem__(self, dim: int) -> _BatchSize:
        if dim != 0:
            raise NotStraight("asks for a size other than the batch's")
        return _BatchSize()


def _max_pool2d(
    x: Line,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Line:
    # A function's None and [] both mean the window's own size.
    return x.then("", nn.MaxPool2d(kernel_size, stride or None, padding, dilation, return_indices, ceil_mode))


def _relu(x: Line, inplace: bool = False) -> Line:
    return x.relu()


_FUNCTIONS: dict[Any, Callable[..., Line]] = {
    torch.relu: _relu,
    functional.relu: _relu,
    torch.tanh: Line.tanh,
    functional.tanh: Line.tanh,
    torch.flatten: Line.flatten,
    torch.max_pool2d: _max_pool2d,
    functional.max_pool2d: _max_pool2d,
}


@contextmanager
def _in_training(module: nn.Module) -> Iterator[None]:
    modes = [(child, child.training) for child in module.modules()]
    module.train()
    try:
        yield
    finally:
        for child, training in modes:
            child.training = training


@contextmanager
def _noting(module: nn.Module) -> Iterator[None]:
    """Every module inside notes its call; an attribute of the instance goes before its class's forward."""
    layers = [(name, child) for name, child in module.named_modules() if child is not module]
    for name, layer in layers:
        layer.__dict__["forward"] = _note(name, layer)
    try:
        yield
    finally:
        for _, layer in layers:
            del layer.__dict__["forward"]


def _note(name: str, layer: nn.Module) -> Callable[[Any], Line]:
    def forward(x: Any) -> Line:
        if not isinstance(x, Line):
            raise NotStraight(f"gives {name!r} something other than the batch")
        return x.then(name, layer)

    return forward


@contextmanager
def _unchanged(module: nn.Module) -> Iterator[None]:
    """Refuse a forward that draws or that changes what a module holds: the next call may do something else."""
    held = [dict(vars(child)) for child in module.modules()]
    drawn = _generators()
    yield
    if _generators() != drawn:
        raise NotStraight("draws random numbers")
    for before, child in zip(held, module.modules(), strict=True):
        after = vars(child)
        if before.keys() != after.keys() or any(before[name] is not after[name] for name in before):
            raise NotStraight("changes an attribute of the module")


def _generators() -> tuple[Any, ...]:
    """What the process's generators would draw next."""
    numpy: Any = np.random.get_state()
    kind, keys, *others = numpy
    return random.getstate(), torch.get_rng_state().numpy().tobytes(), (kind, keys.tobytes(), *others)
