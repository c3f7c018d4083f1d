"""Finds out what a module's `forward` does, where that is one straight line of layers.

The forward is called once with a `TracedBatch` in the place of a batch. It notes the layers on its way and knows
nothing of its values: what it cannot answer without them it refuses. Modules that it calls note themselves there, and
so do the few functions that stand for a layer (relu, tanh, max_pool2d, flatten and its spellings with view and
reshape). Everything else ends the attempt: a branch on the batch, a sum of two ways, any other call of torch's, without
gradient or in another precision too, a draw, a change of what the module holds (`side_effects.py`).

What cannot be seen is a forward that depends on a global of its file, and changes it; nor what it does only with a
tensor, or to a layer while it calls it, which a trial on a batch shows (`recognised_by_trial.py`).

torch.fx does not do: isinstance says False of its proxy, so a forward that asks whether the batch is a tensor goes
another way than with a batch, unnoticed; and its tracer changes nn.Module for the whole process while it works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from raysim.client.trainers import side_effects
from raysim.config.global_draws import draws


class NotStraight(Exception):
    """What a forward does that no sequence of layers does; the text goes on behind "its forward"."""


class FlattenTo(nn.Flatten):
    """view(-1, features), which flattens examples of as many numbers, and would merge others with their neighbours: a
    layer behind it has to ask for as many."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features


def _mode() -> tuple[bool, ...]:
    """How torch would carry a layer out."""
    return torch.is_grad_enabled(), *(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda"))


@dataclass
class Trace:
    """What was called so far, and why that is not a line."""

    called: list[nn.Module] = field(default_factory=list)
    refusal: str | None = None
    mode: tuple[bool, ...] = field(default_factory=_mode)
    """How torch carries layers out at the beginning."""

    def refusing(self, why: str) -> NotStraight:
        """Note it, should the forward catch what is raised."""
        self.refusal = self.refusal or why
        return NotStraight(why)

    def refusing_call(self, function: Any) -> NotStraight:
        """The same, of a function."""
        name = getattr(function, "__name__", str(function))
        return self.refusing(f"calls {name}, which stands for none of the layers with a hand-written layer")


class TracedBatch:
    """A batch on its way through a forward: it knows what was called so far, and nothing of its values.

    Only the newest one goes on: a second use of an older one is a second choice.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._is_end = True

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # Asked by isinstance, which a batch would answer otherwise. Passed off as a tensor it would be read as one by
        # torch's own code, beyond its memory.
        self._trace.refusing("asks what kind of thing the batch is")
        return TracedBatch

    def is_end_of(self, trace: Trace) -> bool:
        """Whether all that was called lies behind it."""
        return self._trace is trace and self._is_end

    def then(self, layer: nn.Module, name: str = "") -> TracedBatch:
        """The same batch behind a layer."""
        trace = self._trace
        if not self._is_end:
            raise trace.refusing(f"uses the input of {name or type(layer).__name__!r} twice")
        if not layer.training:
            raise trace.refusing(f"calls {name!r} in evaluation mode")
        if _mode() != trace.mode:
            raise trace.refusing(
                f"calls {name or type(layer).__name__!r} without gradients, or in a precision of its own"
            )
        self._is_end = False
        trace.called.append(layer)
        return TracedBatch(trace)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> TracedBatch:
        line = next(arg for arg in (*args, *(kwargs or {}).values()) if type(arg) is TracedBatch)
        if (stands_for := _FUNCTIONS.get(function)) is None:
            raise line._trace.refusing_call(function)
        return stands_for(*args, **(kwargs or {}))

    def relu(self) -> TracedBatch:
        """torch.Tensor.relu."""
        return self.then(nn.ReLU())

    def tanh(self) -> TracedBatch:
        """torch.Tensor.tanh."""
        return self.then(nn.Tanh())

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> TracedBatch:
        """torch.Tensor.flatten, from the axis behind the batch's."""
        return self.then(nn.Flatten(start_dim, end_dim))

    def contiguous(self) -> TracedBatch:
        """torch.Tensor.contiguous."""
        return self

    def size(self, dim: int | None = None) -> Any:
        """torch.Tensor.size, of which only the batch's is known."""
        return self.shape if dim is None else self.shape[dim]

    @property
    def shape(self) -> _Shape:
        """torch.Tensor.shape, likewise."""
        return _Shape(self._trace)

    def view(self, *shape: Any) -> TracedBatch:
        """torch.Tensor.view, where it flattens all axes but the batch's."""
        asked = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        if len(asked) == 2 and type(asked[1]) is int:
            if type(asked[0]) is _BatchSize:
                return self.flatten(1)
            if type(asked[0]) is int and asked[0] == -1 and asked[1] > 1:
                return self.then(FlattenTo(asked[1]))
        raise self._trace.refusing("calls view or reshape for more than flattening an example")

    reshape = view

    def __getitem__(self, item: Any) -> NoReturn:
        raise self._trace.refusing("takes parts of the batch")

    def __getattr__(self, name: str) -> NoReturn:
        raise self._trace.refusing(
            f"asks the batch for {name!r}, which stands for none of the layers with a hand-written layer"
        )


class _BatchSize:
    """The number of examples of a batch."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace


class _Shape:
    """A batch's shape."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __getitem__(self, dim: int) -> _BatchSize:
        if dim != 0:
            raise self._trace.refusing("asks for a size other than the batch's")
        return _BatchSize(self._trace)


def _refusing(operator: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *others: Any) -> NoReturn:
        raise self._trace.refusing(f"does {operator} with the batch or its size")

    return refuse


# What Python would answer by itself, or leave to the other side, is not an answer of a batch.
_BOTH_SIDES = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
_OPERATORS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "len", "iter", "contains", "int", "float", "index", "neg", "abs"),
    *("invert", "setitem"),
    *(side + name for name in _BOTH_SIDES for side in ("", "r", "i")),
)
for _kind in (TracedBatch, _Shape, _BatchSize):
    for _operator in _OPERATORS:
        setattr(_kind, f"__{_operator}__", _refusing(_operator))


def _max_pool2d(
    x: TracedBatch,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> TracedBatch:
    # A function's None and [] both mean the window's own size.
    return x.then(nn.MaxPool2d(kernel_size, stride or None, padding, dilation, return_indices, ceil_mode))


def _relu(x: TracedBatch, inplace: bool = False) -> TracedBatch:
    return x.relu()


_FUNCTIONS: Mapping[Any, Callable[..., TracedBatch]] = MappingProxyType(
    {
        torch.relu: _relu,
        functional.relu: _relu,
        torch.tanh: TracedBatch.tanh,
        functional.tanh: TracedBatch.tanh,
        torch.flatten: TracedBatch.flatten,
        torch.max_pool2d: _max_pool2d,
        functional.max_pool2d: _max_pool2d,
    }
)


def straight_line(module: nn.Module) -> list[nn.Module]:
    """The modules that the module's forward calls, in order; what these call can be followed in turn.

    Args:
        module: in training mode; it is called once, so it is left as it was but for what its forward changes.

    Raises:
        NotStraight: they are not one line; says why.
    """
    trace = Trace()
    try:
        before = side_effects.by(module)
        with draws() as drew:
            with _noting(module, trace), _Watching(trace):
                end = module(TracedBatch(trace))
            drawn = drew()
        changed = side_effects.by(module) != before
    except Exception as error:
        # Whatever a forward does that a Line cannot: its own error says it best.
        raise NotStraight(
            trace.refusal or f"is not a plain sequence of layers ({type(error).__name__}: {error})"
        ) from error
    if trace.refusal:
        # The forward went on, another way than it would have with a batch.
        raise NotStraight(trace.refusal)
    if drawn:
        raise NotStraight("draws random numbers")
    if changed:
        raise NotStraight("changes what the module holds, or may: not all of that can be looked into")
    if not (isinstance(end, TracedBatch) and end.is_end_of(trace)):
        raise NotStraight("returns something other than what its last layer makes")
    return trace.called


class _Watching(TorchFunctionMode):
    """Sees every call of torch's: one that the batch has no part in is none of a layer."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(type(arg) is TracedBatch for arg in (*args, *(kwargs or {}).values())):
            return TracedBatch.__torch_function__(function, types, args, kwargs)
        raise self._trace.refusing_call(function)


@contextmanager
def _noting(module: nn.Module, trace: Trace) -> Iterator[None]:
    """Every module inside notes its call; an attribute of the instance goes before its class's forward."""
    layers = [(name, child) for name, child in module.named_modules() if child is not module]
    for name, layer in layers:
        layer.__dict__["forward"] = _note(name, layer, trace)
    try:
        yield
    finally:
        for _, layer in layers:
            del layer.__dict__["forward"]


def _note(name: str, layer: nn.Module, trace: Trace) -> Callable[..., TracedBatch]:
    def forward(x: Any, *others: Any, **named: Any) -> TracedBatch:
        if type(x) is not TracedBatch or others or named:
            raise trace.refusing(f"gives {name!r} something other than the batch")
        return x.then(layer, name)

    return forward
