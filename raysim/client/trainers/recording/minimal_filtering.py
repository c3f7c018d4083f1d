"""Lets a recorded step compute convolutions by minimal filtering: a pure function on its operators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.kernel.winograd import Winograd, gains
from raysim.client.trainers.recording.simplify import Program
from raysim.client.trainers.recording.stand_in import StandIn
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten


@dataclass(frozen=True)
class Filtering(StandIn):
    """Of torch's convolution, or of its backward pass.

    by: what computes it. layout: of the map that it makes.
    """

    by: Winograd
    layout: torch.memory_format = torch.contiguous_format

    def __call__(self, *args: Any) -> Any:
        """What torch's operator returns."""
        if self.is_backward:
            dy, x, w, _, _, padding, *_, mask = args
            return self.by.gradients(dy, x, w, padding, mask, self.layout)
        x, w, bias, _, padding, *_ = args
        return self.by.convolution(x, w, bias, padding, self.layout)

    @property
    def is_backward(self) -> bool:
        """Whether it is the backward pass."""
        return self.overload is _aten.convolution_backward.default


def by_filtering(program: Program, values: Sequence[Tensor], by: Winograd, dtype: torch.dtype) -> Program:
    """Return the program with `Filtering` in the place of each convolution that gains by it.

    Args:
        program: simplified.
        values: of its slots, as they were recorded.
        by: computes them.
        dtype: of its numbers.
    """

    read = {slot for op in program.ops for slot in op.operands}

    def filtered(op: Op) -> Op:
        layout = _layout(op, values, read) if gains_by_it(op, values, dtype) else None
        return op if layout is None else replace(op, function=Filtering(op.function, by, layout))

    ops = tuple(map(filtered, program.ops))
    return program if ops == program.ops else replace(program, ops=ops)


def gains_by_it(op: Op, values: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Whether it is a convolution, or its backward pass, that is faster by minimal filtering."""
    if op.function is _aten.convolution.default:
        maps, how = op.args[:2], op.args[3:]
    elif op.function is _aten.convolution_backward.default:
        maps, how = op.args[1:3], op.args[4:-1]
    else:
        return False
    stride, padding, dilation, transposed, _, groups = how
    x, w = (values[slot.number] for slot in maps)
    is_plain = [*stride, *dilation] == [1, 1, 1, 1] and groups == 1 and not transposed
    return is_plain and x.dtype == w.dtype == dtype and x.device.type == "cpu" and gains(x.shape, w.shape, padding)


def _layout(op: Op, values: Sequence[Tensor], read: Collection[Slot]) -> torch.memory_format | None:
    """The layout of the map that torch made, which views behind it may rely on; None where it is another one, or where
    an operator reads a kernel's gradient in another one."""
    of_map, *others = op.results if isinstance(op.results, tuple | list) else (op.results,)
    if not all(slot is None or slot not in read or values[slot.number].is_contiguous() for slot in others):
        return None
    if of_map is None or values[of_map.number].is_contiguous():
        return torch.contiguous_format
    is_last = values[of_map.number].is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_last else None
