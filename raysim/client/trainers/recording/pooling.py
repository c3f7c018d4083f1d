"""Lets max pooling of a recorded step work channels last: a pure function on its operators.

torch's kernel for maps in the usual order takes one number at a time; the one for channels that lie side by side takes
many, and is faster with the copies before and behind it too. The numbers are the same, and of equal numbers both take
the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raysim.client.trainers.recording.simplify import Program
from raysim.client.trainers.recording.tape import Op, Slot

_POOL = torch.ops.aten.max_pool2d_with_indices.default
_BACKWARD = torch.ops.aten.max_pool2d_with_indices_backward.default
_CONTIGUOUS = torch.ops.aten.contiguous.default

LEAST_CHANNELS, LEAST_NUMBERS = 16, 1 << 14
"""Of the maps, from which the copies cost less than they save: 20 x 64 maps of 24 x 24 take .9 ms for 6.0, 10 x 32 of
28 x 28 .3 for 1.3; 10 x 8 of 14 x 14 take as long as before, 32 x 3 of 16 x 16 twice as long (AMD EPYC, Zen 4)."""


def channels_last(program: Program, values: Sequence[Tensor]) -> Program:
    """Return the program with copies before its max poolings, and behind them.

    Args:
        program: simplified.
        values: of its slots, as they were recorded.
    """
    ops: list[Op] = []
    fresh = len(values)
    for op in program.ops:
        if not (op.function is _POOL and _gains(values[op.args[0].number])):
            ops.append(op)
            continue
        before, pooled, indices = (Slot(fresh + i) for i in range(3))
        fresh += 3
        ops.append(_copy(op.args[0], before, torch.channels_last))
        ops.append(replace(op, args=(before, *op.args[1:]), results=(pooled, indices)))
        # Views that follow ask how their operand lies in memory.
        for made, recorded in zip((pooled, indices), op.results, strict=True):
            ops.append(_copy(made, recorded, torch.contiguous_format))
    return replace(program, ops=tuple(ops))


def _copy(slot: Slot, made: Slot, layout: torch.memory_format) -> Op:
    return Op(_CONTIGUOUS, (slot,), {"memory_format": layout}, made)


def _gains(x: Tensor) -> bool:
    images = x.dim() == 4 and not x.is_cuda and x.is_contiguous()
    return images and x.shape[1] >= LEAST_CHANNELS and x.numel() >= LEAST_NUMBERS
