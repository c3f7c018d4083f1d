"""Finds objectives that are functions of the module's outputs and the targets alone, for trainers without a module.

Such an objective calls the module once, on x itself, and asks nothing else of module, x and `at` but constants. So it
can be called with stand-ins that refuse everything else: first to find out, then in training, where it must not start
to ask for more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, cast

from torch import Tensor, nn

from raysim.client.objective import LocalObjective, ObjectiveAt
from raysim.config.unwritten import check_unwritten, versions
from raysim.models import memory
from raysim.models.task import check_losses


class Asked(Exception):
    """The objective asked for something that no stand-in has."""


class Refusals:
    """What the stand-ins of one call refused first; an objective may have caught the exception."""

    first: str = ""

    def refuse(self, what: str) -> NoReturn:
        """Note it, and raise."""
        self.first = self.first or what
        raise Asked(self.first)


@dataclass(frozen=True)
class LossOfOutputs:
    """`losses(outputs, targets)` of such an objective, as `Task.losses`."""

    objective: LocalObjective

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See the module's head.

        Raises:
            ValueError: it asks for more than outputs and targets now, or wrote to the targets; or not one loss per
                example came back.
        """
        before = versions(targets)
        losses = self.unchecked(outputs, targets)
        check_unwritten("objective=", before, {"y": targets})
        check_losses(losses, len(targets), "objective=")
        return cast(Tensor, losses)

    def unchecked(self, outputs: Tensor, targets: Tensor) -> Any:
        """Whatever the objective returns."""
        losses, refused = _called(self.objective, outputs, targets)
        if refused:
            raise ValueError(
                f"objective= {refused}, which it did not on the first examples, so clients are trained without a "
                f"module to ask: set engine.trainer = 'one_by_one'."
            )
        return losses


def obstacle(objective: LocalObjective, outputs: Tensor, targets: Tensor) -> str | None:
    """Why the objective is not a function of outputs and targets alone; None where it is one."""
    try:
        _, refused = _called(objective, outputs, targets)
    except Exception as error:
        if memory.is_lacking(error):
            # How clients are trained must not depend on what else is in memory.
            raise
        return f"fails on the module's outputs alone ({type(error).__name__}: {error})"
    return refused or None


def _called(objective: LocalObjective, outputs: Tensor, targets: Tensor) -> tuple[object, str]:
    """What the objective returns, and what it asked for that there is not."""
    refusals = Refusals()
    x = _X(refusals)
    module, at = _Module(x, outputs, refusals), _At(objective, refusals)
    try:
        losses = objective.function(cast(nn.Module, module), cast(Tensor, x), targets, cast(ObjectiveAt, at))
    except Exception:
        if refusals.first:
            return None, refusals.first
        raise
    return losses, refusals.first


class _Module:
    """Hands out the outputs once, for x itself."""

    def __init__(self, x: _X, outputs: Tensor, refusals: Refusals) -> None:
        object.__setattr__(self, "_own", (x, outputs, refusals))
        object.__setattr__(self, "_calls", [])

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        x, outputs, refusals = object.__getattribute__(self, "_own")
        calls = object.__getattribute__(self, "_calls")
        if calls:
            refusals.refuse("calls the module more than once")
        if kwargs or len(args) != 1 or args[0] is not x:
            refusals.refuse("calls the module on something other than x")
        calls.append(None)
        return cast(Tensor, outputs)

    def __getattribute__(self, name: str) -> NoReturn:
        _refuse(self, f"asks for module.{name}")


class _At:
    """Has constants only."""

    def __init__(self, objective: LocalObjective, refusals: Refusals) -> None:
        object.__setattr__(self, "_own", (objective, refusals))

    def __getattribute__(self, name: str) -> Any:
        objective, refusals = object.__getattribute__(self, "_own")
        if name != "constants":
            refusals.refuse(f"asks for at.{name}")
        return objective.constants


class _X:
    """Can only be handed to the module."""

    def __init__(self, refusals: Refusals) -> None:
        object.__setattr__(self, "_own", (refusals,))

    def __getattribute__(self, name: str) -> NoReturn:
        # Functions of torch's ask for what it is.
        _refuse(self, "computes with x" if name.startswith("__") else f"asks for x.{name}")


def _refuse(stand_in: Any, what: str) -> NoReturn:
    refusals: Refusals = object.__getattribute__(stand_in, "_own")[-1]
    refusals.refuse(what)


def _refusing(operator: str) -> Any:
    def refuse(self: Any, *others: Any, **named: Any) -> NoReturn:
        _refuse(self, f"does {operator} with {_NAMES[type(self)]}")

    return refuse


_NAMES: Mapping[type, str] = MappingProxyType({_X: "x", _Module: "the module", _At: "at"})

# Python looks operators up on the class, past __getattribute__.
_BOTH_SIDES = ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor")
_OPERATORS = (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "len", "iter", "contains", "int", "float", "index", "neg", "pos"),
    *("abs", "invert", "hash", "repr", "str", "format", "getitem", "setitem", "delitem", "setattr", "delattr", "round"),
    *(side + name for name in (*_BOTH_SIDES, "lshift", "rshift") for side in ("", "r", "i")),
)
for _kind in _NAMES:
    for _operator in (*_OPERATORS, *(() if _kind is _Module else ("call",))):
        setattr(_kind, f"__{_operator}__", _refusing(_operator))
