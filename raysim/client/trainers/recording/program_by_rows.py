"""What a rule for an operator asks of a program by rows, and what rules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from raysim.client.trainers.recording.row_order import RowOrder
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten


class ProgramByRows(Protocol):
    """What rules ask of a program: see `counted_rows`."""

    def shape(self, slot: Slot) -> tuple[int, ...] | None:
        """Of all rows; None: unknown."""

    def gradient(self, slot: Slot) -> tuple[RowOrder, Slot] | None:
        """How a gradient lies that is 0 where no place counts, and its rows; None: it is no such gradient."""

    def is_asked_for(self, slot: Slot) -> bool:
        """Whether somebody has asked for the rows of a tensor."""

    def asked(self, slot: Slot) -> tuple[RowOrder, Slot]:
        """How a tensor lies whose rows somebody has asked for, and these."""

    def may_ask(self, slot: Slot, order: RowOrder) -> bool:
        """Whether the rows of a tensor that is no such gradient are to be had."""

    def ask(self, slot: Slot, order: RowOrder) -> Slot:
        """Have them."""

    def are(self, slot: Slot, order: RowOrder, rows: Slot) -> list[Op]:
        """Say that these are the rows of a tensor, for which somebody may have asked."""

    def share(self, slots: Sequence[Any]) -> None:
        """Say what is read as it is."""

    def result(self, slot: Slot, order: RowOrder, rows: Slot | None = None) -> Slot:
        """Say that such a gradient is made, and how it lies; its rows are fresh ones, or these."""

    def fresh(self) -> Slot:
        """A slot that nobody has."""

    def turn(self, slot: Slot, rows: Slot) -> None:
        """Say that a slot is a gradient, turned, and this its rows, turned."""

    def turned(self, slot: Slot) -> Slot | None:
        """Rows that were turned."""

    def is_wanted(self, slot: Slot) -> bool:
        """Whether the program is asked for it."""

    def made_by(self, slot: Slot) -> Op | None:
        """The operator that makes it."""

    def readers(self, slot: Slot) -> Sequence[Op]:
        """Operators that read it."""

    def states(self, slot: Slot) -> tuple[Slot, Slot] | None:
        """What packed LSTMs make, of which these are the states: outputs, and the states before them."""


Rule = Callable[[ProgramByRows, Op], list[Op] | None]
"""Returns what is carried out instead, or None where it does not know how; then it has asked for nothing."""

VIEWS = frozenset(
    {
        *(_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default),
        *(_aten.clone.default, _aten.contiguous.default),
    }
)
SUMS = frozenset({_aten.sum.dim_IntList, _aten.mean.dim})


def with_rows(rows: ProgramByRows, op: Op, order: RowOrder) -> tuple[Any, ...] | None:
    """The arguments of an operator on each number of a result that lies so."""
    shape = rows.shape(op.results)
    if shape is None or any(isinstance(one, list | tuple) for one in op.args) or has_slots(op.kwargs):
        return None
    slots = [one for one in op.args if isinstance(one, Slot) and rows.gradient(one) is None]
    lying = [slot for slot in slots if len(rows.shape(slot) or ()) == len(shape)]
    others = [slot for slot in slots if slot not in lying]
    if not all(is_shared(rows, slot, order.numbers(shape)) for slot in others):
        return None
    if not all(rows.may_ask(slot, order) for slot in lying):
        return None
    rows.share(others)
    return tuple(rows.ask(one, order) if one in lying else _of_gradient(rows, one) for one in op.args)


def _of_gradient(rows: ProgramByRows, one: Any) -> Any:
    found = rows.gradient(one) if isinstance(one, Slot) else None
    return one if found is None else found[1]


def is_shared(rows: ProgramByRows, slot: Slot, numbers: Sequence[int]) -> bool:
    """Whether a tensor has no leading axes, so that it is the same for all rows of so many numbers."""
    shape = rows.shape(slot)
    return shape is not None and len(shape) <= len(numbers)


def turned(rows: ProgramByRows, op: Op, order: RowOrder) -> RowOrder | None:
    """How what two axes are exchanged of lies on the one side, where it lies so on the other."""
    shape = rows.shape(op.args[0])
    return None if shape is None else order.turned(*(axis % len(shape) for axis in op.args[1:]))


def sum_inside(rows: ProgramByRows, op: Op, order: RowOrder) -> tuple[Any, ...] | None:
    """The arguments behind the first of a sum over other axes than those of the rows, counted from the last axis."""
    shape = rows.shape(op.args[0])
    if shape is None or not op.args[1] or has_slots(op.kwargs):
        return None
    axes = [axis % len(shape) for axis in op.args[1]]
    if min(axes) < order.axes:
        return None
    return [axis - len(shape) for axis in axes], *op.args[2:]


def axis_inside(rows: ProgramByRows, op: Op, order: RowOrder) -> int | None:
    """The axis along which parts lie, from the last on; None where it is one of the rows'."""
    part = op.args[0][0] if isinstance(op.args[0], list) else op.args[0]
    shape, place = rows.shape(part), 2 if op.function is _aten.split.Tensor else 1
    if shape is None:
        return None
    axis = (op.args[place] if len(op.args) > place else 0) % len(shape)
    return None if axis < order.axes else axis - len(shape)


def has_slots(kwargs: Mapping[str, Any]) -> bool:
    """Whether there are tensors among named arguments."""
    return any(isinstance(value, Slot) for value in kwargs.values())
