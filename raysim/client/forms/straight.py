"""What a module's `forward` does, where that is one straight line of layers.

The forward is called once with a `Line` in the place of a batch. Modules that it calls note themselves there, and so do
the few functions that stand for a layer (relu, tanh, max_pool2d, flatten and its spellings with view and reshape).
Everything else ends the attempt: a branch on the batch, a sum of two ways, any other call of torch's, without gradient
or in another precision too, a draw, a change of what the module holds (`held.py`).

What cannot be seen is a forward that depends on a global of its file, and changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode

from raysim.client.forms import held
from raysim.client.forms.line import Line, NotStraight, Trace


def straight_line(module: nn.Module) -> list[nn.Module]:
    """The modules that the module's forward calls, in order; what these call can be followed in turn.

    Args:
        module: in training mode; it is called once, so it is left as it was but for what its forward changes.

    Raises:
        NotStraight: they are not one line; says why.
    """
    trace = Trace()
    try:
        before = held.by(module)
        with held.draws() as drew:
            with _noting(module, trace), _Watching(trace):
                end = module(Line(trace))
            drawn = drew()
        changed = held.by(module) != before
    except Exception as error:
        # Whatever a forward does that a Line cannot: its own error says it best.
        raise NotStraight(
            trace.refusal or f"is no plain sequence of layers ({type(error).__name__}: {error})"
        ) from error
    if trace.refusal:
        # The forward went on, another way than it would have with a batch.
        raise NotStraight(trace.refusal)
    if drawn:
        raise NotStraight("draws random numbers")
    if changed:
        raise NotStraight("changes what the module holds, or may: not all of that can be looked into")
    if not (isinstance(end, Line) and end.is_end_of(trace)):
        raise NotStraight("returns something other than what its last layer makes")
    return trace.called


class _Watching(TorchFunctionMode):
    """Sees every call of torch's: one that the batch has no part in is none of a layer."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(type(arg) is Line for arg in (*args, *(kwargs or {}).values())):
            return Line.__torch_function__(function, types, args, kwargs)
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


def _note(name: str, layer: nn.Module, trace: Trace) -> Callable[..., Line]:
    def forward(x: Any, *others: Any, **named: Any) -> Line:
        if type(x) is not Line or others or named:
            raise trace.refusing(f"gives {name!r} something other than the batch")
        return x.then(layer, name)

    return forward
