"""Fresh memory for the vectors that a server step makes.

A step replaces its state, so it makes several models' worth of memory that the kernel must clear. In pages of 4 kB that
takes longer than the arithmetic: 10 million float32 take 16 ms, and 4 ms in huge pages, where one pass over them takes
2 ms. Where huge pages cannot be had the vector is an ordinary one; its values are the same.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import torch
from torch import Tensor

LARGE_BYTES = 1 << 22
"""Smaller vectors come from the heap, which reuses its pages."""

_PAGE = 4096
_MADV_HUGEPAGE = 14


def fresh(like: Tensor) -> Tensor:
    """An uninitialised vector of the same shape, dtype and device."""
    made = torch.empty_like(like)
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
