"""Computes with flat vectors of the model's size: new ones, and norms.

Norms are accumulated in float64 whatever the vector's dtype.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

from raysim.models.layout import Layout
from raysim.models.memory import BLOCKS, SMALLEST_BYTES

BLOCK = 1 << 16
"""Numbers converted at a time: they stay in the cache, where a reduction that converts as it reads does not."""


def fresh(like: Tensor) -> Tensor:
    """An uninitialised vector of the same shape, dtype and device; see `empty`."""
    return empty(like.shape, like.dtype, like.device)


def zeros(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A vector of zeros; see `empty`."""
    return empty((count,), dtype, device).zero_() if count else _nothing(dtype, device)


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor; a large one in the host's memory lies in a block that the process uses again."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes >= SMALLEST_BYTES and device.type == "cpu" and sys.platform == "linux":
        # Where there is no such memory, torch raises its own error.
        with suppress(OSError):
            return torch.from_numpy(BLOCKS.lend(num_bytes)).view(dtype).view(tuple(shape))
    return torch.empty(tuple(shape), dtype=dtype, device=device)


@cache
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    # It may be met outside inference mode, too.
    with torch.inference_mode(False):
        return torch.empty(0, dtype=dtype, device=device)


def add_quotient(vector: Tensor, direction: Tensor, numerator: float, divisor: float) -> Tensor:
    """vector <- vector + (numerator / divisor) direction, which is returned; a learning rate may have decayed far.

    The quotient may be too large for the dtype, or for any, since the product is not: 0 / 0 is 0.

    >>> add_quotient(torch.zeros(2), torch.tensor([2.0**-140, 0.0]), -1.0, 2.0**-139).tolist()
    [-0.5, 0.0]
    """
    quotient = numerator / divisor if divisor else math.inf
    if abs(quotient) <= torch.finfo(vector.dtype).max:
        return vector.add_(direction, alpha=quotient)
    return vector.add_((direction.double() * numerator).div_(divisor).masked_fill_(direction == 0, 0).to(vector.dtype))


def squared_norm(vector: Tensor) -> float:
    """|vector|^2 of a one-dimensional vector."""
    if vector.dtype == torch.float64:
        return float(torch.dot(vector, vector))
    total = 0.0
    for block in blocks(vector):
        wide = block.double()
        total += float(torch.dot(wide, wide))
    return total


def blocks(vector: Tensor, size: int = BLOCK) -> Sequence[Tensor]:
    """Return views of a vector's numbers, `size` of them at a time, the last one shorter; of a short one itself."""
    return vector.split(size) if len(vector) > size else (vector,)


def group_norms(layout: Layout, vector: Tensor) -> list[float]:
    """|vector_P| of every parameter group P, in layout order; the gaps between groups belong to none."""
    return [math.sqrt(squared_norm(piece)) for piece in layout.pieces(vector)]
