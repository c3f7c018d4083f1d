"""Recognises losses that repeat the task's own, so that they keep its gradients by hand and its compiled kernel.

It is a proof by looking: the loss is called once and must be a straight line of Python that calls nothing but torch,
and its calls of torch, with what flows between them, must be those of a known spelling of the task's loss. One that
branches, prints, counts, draws or calls anything else is not recognised, and trained as it is.
"""

from __future__ import annotations

import dis
import gc
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from raysim.models import memory
from raysim.models import task as tasks
from raysim.models.task import Loss

Call = tuple[Any, Any]
"""A function, and its arguments by name or position with tensors as the numbers of the calls that made them."""

Trace = tuple[list[Call], int]
"""Calls in their order, and the number of the one that made what is returned."""


def repeats(loss: Loss, built_in: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss is `built_in`, in a spelling that is known.

    Args:
        loss: a script's.
        built_in: the task's.
        outputs, targets: of a batch, as the module and the data have them; values do not matter.
    """
    if loss == built_in:
        return True
    arguments = outputs.detach().clone().requires_grad_(), targets.clone()
    with warnings.catch_warnings():
        # Shapes that do not fit are warned of when the loss is checked.
        warnings.simplefilter("ignore")
        try:
            with _straight_line() as is_straight:
                calls = _trace(loss, *arguments)
            if calls is None or not is_straight():
                return False
            spellings = (built_in, *_SPELLINGS.get(built_in, ()))
            return any(_is(calls, spelling, built_in, *arguments) for spelling in spellings)
        except Exception as error:
            if memory.is_lacking(error):
                # How clients are trained must not depend on what else is in memory.
                raise
            # Whatever is wrong with the loss, the check on the first examples says so.
            return False


def _is(calls: Trace, spelling: Loss, built_in: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether this is the spelling's trace, and the spelling says what the task's own does."""
    try:
        known, losses = _trace(spelling, outputs, targets), spelling(outputs, targets)
    except Exception as error:
        if memory.is_lacking(error):
            raise
        return False  # It is for other shapes.
    expected = built_in(outputs, targets)
    return known == calls and losses.shape == expected.shape and torch.allclose(losses, expected)


_SPELLINGS: dict[Any, Sequence[Loss]] = {
    tasks.cross_entropy: (
        lambda o, t: F.cross_entropy(o, t, reduction="none"),
        lambda o, t: F.nll_loss(F.log_softmax(o, dim=1), t, reduction="none"),
        lambda o, t: F.nll_loss(F.log_softmax(o, dim=-1), t, reduction="none"),
        lambda o, t: F.cross_entropy(o.transpose(1, 2), t, reduction="none").mean(1),
        lambda o, t: F.cross_entropy(o.transpose(1, 2), t, reduction="none").mean(dim=1),
        lambda o, t: F.cross_entropy(o.transpose(1, 2), t, reduction="none").mean(-1),
    ),
    tasks.squared_error: (
        lambda o, t: (o - t) ** 2,
        lambda o, t: (o.squeeze(1) - t) ** 2,
        lambda o, t: (o.squeeze(-1) - t) ** 2,
        lambda o, t: (o - t).square(),
        lambda o, t: F.mse_loss(o, t, reduction="none"),
        lambda o, t: F.mse_loss(o.squeeze(1), t, reduction="none"),
        lambda o, t: F.mse_loss(o.squeeze(-1), t, reduction="none"),
        lambda o, t: ((o - t) ** 2).mean(1),
        lambda o, t: (o - t).square().mean(1),
        lambda o, t: F.mse_loss(o, t, reduction="none").mean(1),
        lambda o, t: F.mse_loss(o, t, reduction="none").mean(dim=1),
    ),
}


def _trace(loss: Loss, outputs: Tensor, targets: Tensor) -> Trace | None:
    """The loss's calls of torch, and which of them made what it returns; None where that is not one of them."""
    with _Tracing(outputs, targets) as tracing:
        losses = loss(outputs, targets)
    if not isinstance(losses, Tensor) or not losses.requires_grad:
        return None
    number = tracing.numbers.get(id(losses))
    return None if number is None or tracing.is_lost else (tracing.calls, number)


class _Tracing(TorchFunctionMode):
    """Writes down every call of torch's, whatever it is on."""

    def __init__(self, outputs: Tensor, targets: Tensor) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.numbers = {id(outputs): -2, id(targets): -1}
        self.is_lost = False
        # Kept alive, for no two of them to have one id.
        self._made: list[Any] = [outputs, targets]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if result is not None and args and result is args[0] and getattr(function, "__name__", "") in _MAY_DO_NOTHING:
            return result
        self.calls.append((function, self._numbered(_bound(function, args, kwargs))))
        self.numbers[id(result)] = len(self.calls) - 1
        self._made.append(result)
        return result

    def _numbered(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            # A constant of the loss's own is of no spelling.
            self.is_lost |= id(value) not in self.numbers
            return "tensor", self.numbers.get(id(value))
        if isinstance(value, dict):
            return [(key, self._numbered(one)) for key, one in value.items()]
        if isinstance(value, tuple | list):
            return [self._numbered(one) for one in value]
        return type(value), value


_MAY_DO_NOTHING = ("long", "float", "double", "to", "contiguous")
"""Methods that return the tensor itself where it is already what is asked for."""


def _bound(function: Any, args: Any, kwargs: Any) -> Any:
    """The arguments by name, with defaults, where the function says its names."""
    if not isinstance(function, FunctionType):
        return [args, kwargs]
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


@contextmanager
def _straight_line() -> Iterator[Callable[[], bool]]:
    """Says whether what was called inside is a straight line that calls nothing but torch and keeps nothing."""
    plain = True
    seen: set[CodeType] = set()

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal plain
        if _is_known(frame):
            return
        if event == "call" and frame.f_code not in seen:
            seen.add(frame.f_code)
            plain &= not any(each.opname.startswith(_NOT_STRAIGHT) for each in dis.get_instructions(frame.f_code))
        elif event == "c_call":
            plain &= _is_torch(arg)

    before, collects = sys.getprofile(), gc.isenabled()
    # A garbage collection would call finalizers of others here, which look as if the loss had called them.
    gc.disable()
    sys.setprofile(watch)
    try:
        yield lambda: plain
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()


_NOT_STRAIGHT = (
    *("POP_JUMP", "JUMP_BACKWARD", "FOR_ITER", "JUMP_IF", "SETUP_", "BEFORE_WITH", "IMPORT_"),
    *("STORE_GLOBAL", "STORE_ATTR", "STORE_SUBSCR", "STORE_DEREF", "STORE_SLICE", "STORE_NAME", "DELETE_", "YIELD"),
)
"""Instructions that decide, repeat, or change something that is there afterwards."""


def _is_known(frame: FrameType | None) -> bool:
    """Whether the frame is of torch or raysim, or of Python's library on their behalf."""
    while frame is not None:
        name = frame.f_globals.get("__name__", "").partition(".")[0]
        if name in ("torch", "raysim"):
            return True
        if name not in sys.stdlib_module_names:
            return False
        frame = frame.f_back
    return False


def _is_torch(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__module__", None) or getattr(type(owner), "__module__", None) or ""
    return name.partition(".")[0] == "torch"
