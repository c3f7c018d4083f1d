"""Lets poolings of a recorded step work channels last: a pure function on its operators.

torch's kernels for maps in the usual order take one number at a time; those for channels that lie side by side take
many, and are faster with the copies before and behind them too. The numbers are the same; of equal numbers, both
kernels for the maximum take the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raysim.client.trainers.recording.simplify import Program
from raysim.client.trainers.recording.tape import Op, Slot

_POOLS = (torch.ops.aten.max_pool2d_with_indices.default, torch.ops.aten.avg_pool2d.default)
_CONTIGUOUS = torch.ops.aten.contiguous.default

LEAST_CHANNELS, LEAST_NUMBERS = 16, 1 << 14
"""Of the maps, from which the copies cost less than they save. The maximum over 20 x 64 maps of 24 x 24 takes .9 ms for
6.0, over 10 x 32 of 28 x 28 .3 for 1.3; over 10 x 8 of 14 x 14 as long as before, over 32 x 3 of 16 x 16 twice as long.
The mean over 20 x 64 maps of 24 x 24 takes .6 ms for 1.3 (AMD EPYC, Zen 4)."""


def channels_last(program: Program, values: Sequence[Tensor]) -> Program:
    """Return the program with copies before its poolings, and behind them.

    Args:
        program: simplified.
        values: of its slots, as they were recorded.
    """
    ops: list[Op] = []
    fresh = max([len(values), *(slot.number + 1 for op in program.ops for slot in op.result_slots)])
    for op in program.ops:
        if not (op.function in _POOLS and _gains(values[op.args[0].number])):
            ops.append(op)
            continue
        before, *made = (Slot(fresh + i) for i in range(1 + len(op.result_slots)))
        fresh += 1 + len(made)
        ops.append(_copy(op.args[0], before, torch.channels_last))
        results = tuple(made) if isinstance(op.results, tuple) else made[0]
        ops.append(replace(op, args=(before, *op.args[1:]), results=results))
        # Views that follow ask how their operand lies in memory.
        ops += [
            _copy(one, recorded, torch.contiguous_format) for one, recorded in zip(made, op.result_slots, strict=True)
        ]
    return replace(program, ops=tuple(ops))


def _copy(slot: Slot, made: Slot, layout: torch.memory_format) -> Op:
    return Op(_CONTIGUOUS, (slot,), {"memory_format": layout}, made)


def _gains(x: Tensor) -> bool:
    images = x.dim() == 4 and not x.is_cuda and x.is_contiguous()
    return images and x.shape[1] >= LEAST_CHANNELS and x.numel() >= LEAST_NUMBERS
