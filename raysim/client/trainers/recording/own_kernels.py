"""Lets a recorded step make the gradient of depthwise kernels in C: a pure function on its operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.kernel.depthwise import Depthwise, gains, is_depthwise
from raysim.client.trainers.recording.simplify import Program
from raysim.client.trainers.recording.stand_in import StandIn
from raysim.client.trainers.recording.tape import Op
from raysim.client.trainers.recording.windows import pair, with_rows

_BACKWARD = torch.ops.aten.convolution_backward.default


@dataclass(frozen=True)
class OwnKernels(StandIn):
    """Of torch's backward pass of a depthwise convolution.

    by: makes the gradient of the kernels, where that gains as the maps lie. The rest is torch's.
    """

    by: Depthwise

    def __call__(self, *args: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """What torch's operator returns."""
        dy, x, w, sizes, stride, padding, dilation, *others, mask = args
        if not gains(x, w.shape):
            made: tuple[Tensor | None, Tensor | None, Tensor | None] = self.overload(*args)
            return made
        dx = db = None
        if mask[0]:
            dx = self.overload(dy, x, w, sizes, stride, padding, dilation, *others, [True, False, False])[0]
        if mask[2]:
            db = dy.sum((0, *range(2, dy.dim())))
        moves = (pair(one, fill) for one, fill in ((stride, 1), (padding, 0), (dilation, 1)))
        dw = self.by.kernels_gradient(with_rows(dy), with_rows(x), with_rows(w).shape, *moves)
        return dx, dw.view(w.shape), db


def by_own_kernels(program: Program, values: Sequence[Tensor], by: Depthwise, dtype: torch.dtype) -> Program:
    """Return the program with `OwnKernels` in the place of each backward pass of a depthwise convolution.

    Args:
        program: simplified.
        values: of its slots, as they were recorded.
        by: makes gradients of kernels.
        dtype: of its numbers.
    """

    def replaced(op: Op) -> Op:
        return replace(op, function=OwnKernels(_BACKWARD, by)) if _may(op, values, dtype) else op

    ops = tuple(map(replaced, program.ops))
    return program if ops == program.ops else replace(program, ops=ops)


def _may(op: Op, values: Sequence[Tensor], dtype: torch.dtype) -> bool:
    if op.function is not _BACKWARD:
        return False
    _, x, w, _, _, _, _, transposed, _, groups, mask = op.args
    kernels = values[w.number]
    is_here = kernels.dtype == values[x.number].dtype == dtype and kernels.device.type == "cpu"
    return bool(mask[1] and is_here and not transposed and is_depthwise(kernels.shape, groups))
