"""Computes with flat vectors of the model's size: fresh memory, and norms.

Norms are accumulated in float64 whatever the vector's dtype.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from raysim.models.layout import Layout

BLOCK = 1 << 16
"""Numbers converted at a time: they stay in the cache, where a reduction that converts as it reads does not."""

LARGE_BYTES = 1 << 22
"""Smaller vectors come from the heap, which reuses its pages."""

_PAGE = 4096
_MADV_HUGEPAGE = 14


def fresh(like: Tensor) -> Tensor:
    """An uninitialised vector of the same shape, dtype and device; see `empty`."""
    return empty(like.shape, like.dtype, like.device)


def zeros(count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A vector of zeros; see `empty`."""
    return empty((count,), dtype, device).zero_()


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor, in huge pages where they can be had.

    A round makes several models' worth of memory that the kernel must clear. In pages of 4 kB that takes longer than
    the arithmetic: 10 million float32 take 16 ms, and 4 ms in huge pages, where one pass over them takes 2 ms.
    Elsewhere the tensor is an ordinary one; its values are the same.
    """
    made = torch.empty(tuple(shape), dtype=dtype, device=device)
    size = made.numel() * made.element_size()
    if size >= LARGE_BYTES and made.device.type == "cpu" and sys.platform == "linux":
        start = -(-made.data_ptr() // _PAGE) * _PAGE
        length = (made.data_ptr() + size - start) // _PAGE * _PAGE
        # Only advice: a kernel that refuses it changes nothing.
        _libc().madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_HUGEPAGE)
    return made


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def squared_norm(vector: Tensor) -> float:
    """|vector|^2 of a one-dimensional vector."""
    if vector.dtype == torch.float64:
        return float(torch.dot(vector, vector))
    total = 0.0
    for block in vector.split(BLOCK):
        wide = block.double()
        total += float(torch.dot(wide, wide))
    return total


def group_norms(layout: Layout, vector: Tensor) -> list[float]:
    """|vector_P| of every parameter group P, in layout order; the gaps between groups belong to none."""
    return [math.sqrt(squared_norm(piece)) for piece in layout.pieces(vector)]
