"""Computes |delta_g|^2 of every parameter group g of updates, in float64.

On a CPU with a C compiler one call reads all numbers once (squared_norms.c), elsewhere NumPy adds up in the same order:
the bits are the same. On a card they are torch's. The bits of a row do not depend on the others.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Float64s, Int64s
from raysim.models.layout import ALIGNMENT, Layout
from raysim.storage import compiled_c
from raysim.storage.compiled_c import CSource

SOURCE = CSource(Path(__file__).with_name("squared_norms.c"), contracted=False)

LANES = ALIGNMENT
"""Sums of a group that are added up apart, so that a processor adds several numbers at a time; as in the sources in C.
In a whole vector no two groups share as many numbers."""

BLOCK = 1 << 14
"""Numbers that NumPy converts at a time, so that they stay in the cache."""


def squared_norms(layout: Layout, deltas: Tensor) -> Tensor:
    """Return float64 (k, G), |row|^2 per parameter group of (k, P), on the device of the rows."""
    if deltas.device.type != "cpu":
        norms = [torch.linalg.vector_norm(piece, dim=-1, dtype=torch.float64) for piece in layout.pieces(deltas)]
        return torch.stack(norms, dim=-1).square()
    offsets, sizes = _groups(layout)
    squares = np.empty((len(deltas), len(sizes)))
    code = _code(deltas.dtype) if deltas.stride(1) == 1 else None
    if code is None:
        _by_numpy(deltas.numpy(), offsets, sizes, squares)
    else:
        groups = len(sizes), offsets.ctypes.data, sizes.ctypes.data
        code(len(deltas), deltas.stride(0), deltas.data_ptr(), *groups, squares.ctypes.data)
    return torch.from_numpy(squares)


@lru_cache(maxsize=64)
def _groups(layout: Layout) -> tuple[Int64s, Int64s]:
    """Return where the groups begin in a row, and their numbers."""
    return np.array(layout.offsets, np.int64), np.array([math.prod(shape) for shape in layout.shapes], np.int64)


@lru_cache(maxsize=4)
def _code(dtype: torch.dtype) -> Callable[..., None] | None:
    """Return the function in C for rows of this type; None where there is no library."""
    if compiled_c.obstacle(SOURCE, dtype) is not None:
        return None
    code: Callable[..., None] = compiled_c.library(SOURCE, dtype).squared_norms
    # Converting by declared types is faster than by objects of ctypes.
    number, address = ctypes.c_int64, ctypes.c_void_p
    code.argtypes = [number, number, address, number, address, address, address]  # type: ignore[attr-defined]
    code.restype = None  # type: ignore[attr-defined]
    return code


def _by_numpy(rows: np.ndarray, offsets: Int64s, sizes: Int64s, squares: Float64s) -> None:
    for row, into in zip(rows, squares, strict=True):
        for group, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
            into[group] = squared_norm_by_lanes(row[offset : offset + size])


def squared_norm_by_lanes(numbers: np.ndarray) -> float:
    """Return |numbers|^2 of (n,), to the bits of the sources in C. Zeros behind the numbers change nothing."""
    whole = len(numbers) // LANES * LANES
    lanes = np.zeros(LANES)
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, whole, BLOCK):
            lines = np.square(numbers[first : min(first + BLOCK, whole)].astype(np.float64)).reshape(-1, LANES)
            lines[0] += lanes
            # Accumulated, not reduced: the order of its additions is defined.
            lanes = np.add.accumulate(lines)[-1]
        lanes[: len(numbers) - whole] += np.square(numbers[whole:].astype(np.float64))
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return float(lanes[0])
