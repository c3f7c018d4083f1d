"""Compares a recording with one at another point: another batch of the same shape, other weights, other draws.

A number that a forward took from its first batch, from a counter or from a clock would stay what it was. Two recordings
tell: whatever is not one operator, argument or tensor in both was not fixed by the module and the shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from raysim.client.trainers.recording.fixed_point import noise
from raysim.client.trainers.recording.tape import Slot, Tape

_NEAR = 0.01
"""How far the other point's weights lie, relative to the mean of their absolute values."""


def another_batch(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Another batch of the same examples: in another order, one of them twice, numbers nearer to 0."""
    rows = torch.arange(len(y) - 1, -1, -1, device=x.device)
    if len(y) > 3:
        # Of two or three examples each is needed: two that are equal have no variance.
        rows[-1] = rows[0]
    moved = x[rows]
    if moved.is_floating_point():
        moved *= 0.97
    return moved, y[rows]


@torch.no_grad()
def move(module: nn.Module, weights: Iterable[Tensor], keys: Tensor) -> None:
    """Move the weights, floating buffers, keys of masks and torch's generators, to the same place at every call."""
    for index, weight in enumerate(weights):
        drawn = noise(weight, index).sub_(0.5)
        weight.add_(drawn.mul_(_NEAR * (weight.abs().mean() + _NEAR)))
    for buffer in module.buffers():
        if buffer.is_floating_point():
            # Their signs stay: there are variances among them.
            buffer.mul_(1 + _NEAR)
    keys.add_(1)
    torch.rand((), device=keys.device)


def same(a: Tape, results: Any, b: Tape, others: Any) -> bool:
    """Whether both tapes hold the same step, and its results are the same slots."""
    return (
        len(a.ops) == len(b.ops)
        and _equal(results, others)
        and all(
            op.function is other.function
            and _equal((op.args, dict(op.kwargs), op.results), (other.args, dict(other.kwargs), other.results))
            for op, other in zip(a.ops, b.ops, strict=True)
        )
        and a.constants == b.constants
        and a.literal == b.literal
        and all(_same_tensor(a.values[at], b.values[at], at in a.literal) for at in a.constants)
    )


def _same_tensor(a: Tensor, b: Tensor, literal: bool) -> bool:
    if a is b:
        return True
    if a.layout != torch.strided or b.layout != torch.strided:
        return False
    if (a.shape, a.dtype, a.device, a.stride()) != (b.shape, b.dtype, b.device, b.stride()):
        return False
    if literal:
        return bool(((a == b) | (a.isnan() & b.isnan())).all())
    # Both are still there, so one place in memory means one tensor.
    return a.numel() == 0 or a.data_ptr() == b.data_ptr()


def _equal(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(_equal(one, other) for one, other in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, Slot):
        return bool(a.number == b.number)
    # Not a number is unlike itself.
    return bool(a == b or (a != a and b != b))
