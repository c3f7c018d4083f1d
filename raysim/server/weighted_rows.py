"""Adds up weighted rows: total + sum_i c_i row_i, number by number in the order of the rows.

On a CPU with a C compiler it is one pass over rows and sum (weighted_rows.c), elsewhere one for each row: the bits are
the same, but for a single row, which is added in one rounding. On a card it is one product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from raysim.models import vectors
from raysim.storage import library
from raysim.storage.library import CSource

SOURCE = CSource(Path(__file__).with_name("weighted_rows.c"), contracted=False)

BLOCK = 1 << 22
"""Numbers that are converted on a card at a time: 32 MB of float64."""

PIECE = 1 << 16
"""Numbers of a row that are converted on a CPU at a time, so that they stay in the cache."""


def sum_of_rows(coefficients: Sequence[float], rows: Tensor) -> Tensor:
    """Return sum_i c_i rows_i, float64 (P,), of k numbers and (k, P), to the bits of an addition to zeros."""
    if rows.device.type == "cpu" and len(rows) == 1:
        total = vectors.empty(rows.shape[1:], torch.float64, rows.device)
        for piece, part in zip(total.split(PIECE), rows[0].split(PIECE), strict=True):
            # The sum of zeros and a row has no negative zeros.
            piece.copy_(part).mul_(coefficients[0]).add_(0.0)
        return total
    if _takes_one_pass(rows):
        return _in_one_pass(vectors.empty(rows.shape[1:], torch.float64, rows.device), coefficients, rows, anew=True)
    total = vectors.zeros(rows.shape[1], torch.float64, rows.device)
    add_rows(total, coefficients, rows)
    return total


def add_rows(total: Tensor, coefficients: Sequence[float], rows: Tensor) -> None:
    """total <- total + sum_i c_i rows_i, in the dtype of `total`: (P,) in float64 or as the rows, k numbers, (k, P)."""
    if rows.device.type != "cpu":
        _on_a_card(total, coefficients, rows)
    elif len(coefficients) == 1:
        # An addition that converts as it reads takes four times as long.
        for piece, part in zip(total.split(PIECE), rows[0].split(PIECE), strict=True):
            piece.add_(part.to(total.dtype), alpha=coefficients[0])
    elif _takes_one_pass(rows):
        _in_one_pass(total, coefficients, rows, anew=False)
    else:
        for c, row in zip(coefficients, rows, strict=True):
            for piece, part in zip(total.split(PIECE), row.split(PIECE), strict=True):
                piece.add_(part.to(total.dtype, copy=True).mul_(c))


def _takes_one_pass(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.stride(1) == 1 and library.obstacle(SOURCE, rows.dtype) is None


def _in_one_pass(total: Tensor, coefficients: Sequence[float], rows: Tensor, anew: bool) -> Tensor:
    assert total.is_contiguous()
    code = library.library(SOURCE, rows.dtype)
    add = code.add_to_doubles if total.dtype is torch.float64 else code.add_to_own
    add(
        *(ctypes.c_int64(number) for number in (*rows.shape, rows.stride(0))),
        ctypes.c_void_p(rows.data_ptr()),
        (ctypes.c_double * len(coefficients))(*coefficients),
        ctypes.c_int64(anew),
        ctypes.c_void_p(total.data_ptr()),
    )
    return total


def _on_a_card(total: Tensor, coefficients: Sequence[float], rows: Tensor) -> None:
    block = max(1, BLOCK // rows.shape[1])
    for first in range(0, len(coefficients), block):
        part = rows[first : first + block].to(total.dtype)
        factors = torch.tensor(coefficients[first : first + block], dtype=total.dtype, device=total.device)
        total.addmv_(part.t(), factors)
