"""Adds up weighted rows: total + sum_i c_i row_i, number by number in the order of the rows.

On a CPU with a C compiler it is one pass over rows and sum (weighted_rows.c), elsewhere one for each row. The bits are
the same, and the same however many rows are added at a time. On a card it is one product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Float64s
from raysim.models import vectors
from raysim.storage import compiled_c
from raysim.storage.compiled_c import CSource

SOURCE = CSource(Path(__file__).with_name("weighted_rows.c"), contracted=False)

BLOCK = 1 << 22
"""Numbers that are converted on a card at a time: 32 MB of float64."""

PIECE = 1 << 16
"""Numbers of a row that are converted on a CPU at a time, so that they stay in the cache."""


def sum_of_rows(coefficients: Float64s, rows: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return sum_i c_i rows_i, (P,), of k numbers and (k, P), to the bits of an addition to zeros.

    `dtype`: float64, or that of the rows.
    """
    assert dtype in (torch.float64, rows.dtype)
    if _takes_one_pass(rows):
        return _in_one_pass(vectors.empty(rows.shape[1:], dtype, rows.device), coefficients, rows, anew=True)
    total = vectors.zeros(rows.shape[1], dtype, rows.device)
    add_rows(total, coefficients, rows)
    return total


def add_rows(total: Tensor, coefficients: Float64s, rows: Tensor) -> None:
    """total <- total + sum_i c_i rows_i, in the dtype of `total`: (P,) in float64 or as the rows, k numbers, (k, P)."""
    if rows.device.type != "cpu":
        _on_a_card(total, coefficients, rows)
    elif _takes_one_pass(rows):
        _in_one_pass(total, coefficients, rows, anew=False)
    else:
        for c, row in zip(coefficients.tolist(), rows, strict=True):
            for piece, part in zip(total.split(PIECE), row.split(PIECE), strict=True):
                piece.add_(part.to(total.dtype, copy=True).mul_(c))


class _Passes(NamedTuple):
    """One pass each, to sums of float64, and of the rows' own type."""

    to_doubles: Callable[..., None]
    to_own: Callable[..., None]


@cache
def _passes(dtype: torch.dtype) -> _Passes | None:
    """Return the passes over rows of this type; None where there is no library."""
    if compiled_c.obstacle(SOURCE, dtype) is not None:
        return None
    code = compiled_c.library(SOURCE, dtype)
    for of_code in (code.add_to_doubles, code.add_to_own):
        # Converting by declared types is faster than by objects of ctypes.
        of_code.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 2 + [ctypes.c_int64, ctypes.c_void_p]
        of_code.restype = None
    return _Passes(code.add_to_doubles, code.add_to_own)


def _takes_one_pass(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.stride(1) == 1 and _passes(rows.dtype) is not None


def _in_one_pass(total: Tensor, coefficients: Float64s, rows: Tensor, anew: bool) -> Tensor:
    assert total.is_contiguous()
    passes = _passes(rows.dtype)
    assert passes is not None
    add = passes.to_doubles if total.dtype is torch.float64 else passes.to_own
    factors = np.ascontiguousarray(coefficients, np.float64)
    add(*rows.shape, rows.stride(0), rows.data_ptr(), factors.ctypes.data, anew, total.data_ptr())
    return total


def _on_a_card(total: Tensor, coefficients: Float64s, rows: Tensor) -> None:
    block = max(1, BLOCK // max(1, rows.shape[1]))
    for first in range(0, len(coefficients), block):
        part = rows[first : first + block].to(total.dtype)
        factors = torch.as_tensor(coefficients[first : first + block], dtype=total.dtype, device=total.device)
        total.addmv_(part.t(), factors)
