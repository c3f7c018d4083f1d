"""Lets a recorded step promote the types of operands by operators of their own: a pure function on its operators.

An operator that multiplies numbers with a mask of truth values promotes these itself. The interpreter has numbers of
one type, so the mask becomes such numbers before, and torch makes them where the mask does not follow from a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raysim.client.trainers.recording.simplify import Program, free_slots
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten

_PROMOTING = frozenset(
    {
        *(_aten.add.Tensor, _aten.sub.Tensor, _aten.mul.Tensor, _aten.div.Tensor),
        *(_aten.add_.Tensor, _aten.sub_.Tensor, _aten.mul_.Tensor, _aten.div_.Tensor),
    }
)
"""Operators whose first two operands may be of other types than their result."""


def promoted(program: Program, values: Sequence[Tensor], dtype: torch.dtype) -> Program:
    """Return the program in which these operators make numbers of the type from nothing but such numbers.

    Args:
        program: simplified.
        values: of the slots, as they were recorded.
        dtype: of the weights.
    """
    free = free_slots(program, values)

    def is_other(slot: object) -> bool:
        return isinstance(slot, Slot) and slot.number < len(values) and values[slot.number].dtype != dtype

    ops: list[Op] = []
    for op in program.ops:
        if op.function in _PROMOTING and not is_other(op.results):
            args = list(op.args)
            for at in range(2):
                if is_other(args[at]):
                    made = next(free)
                    ops.append(Op(_aten._to_copy.default, (args[at],), {"dtype": dtype}, made))
                    args[at] = made
            op = replace(op, args=tuple(args))
        ops.append(op)
    return replace(program, ops=tuple(ops))
