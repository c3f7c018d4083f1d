"""Rounds numbers to a few levels at random, without bias: QSGD, and TernGrad with one level.

Q(v) = n sign(v) (floor(u) + Bernoulli(u - floor(u))) / s        u = s |v| / n, n = |v|_2 or max |v|

which is n/s times the integer nearest to s v / n + w, w uniform between -1/2 and 1/2. Unbiased; its expected error is
(n/s)^2 sum f (1 - f), f = u - floor(u). With `rotate`, R v is rounded and rotated back
(rotation.py). It sends n in 32 bits, and of each number its sign and its level.

On a CPU with a C compiler it is one pass (quantise.c), elsewhere a pass for each operation: the bits are the same.

Source: Alistarh et al. (2017), QSGD; Wen et al. (2017), TernGrad; docs/algorithms.md section 7.
Departure: TernGrad's clipping to 2.5 standard deviations is left out.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim import seeds
from raysim.compression.compressor import CompressionKeys, Compressor
from raysim.compression.rotation import rotated, rotated_back, rotated_length
from raysim.storage import library
from raysim.storage.library import CSource

SOURCE = CSource(Path(__file__).with_name("quantise.c"), contracted=False)

DRAWN_BITS = 16
"""Of each number's own w. The bits behind them are the same in all w of a vector, so each w alone is uniform."""


class QuantiseKeys(CompressionKeys):
    """Keys of stochastic rounding."""

    levels: int = Field(ge=1, le=2**16, description="s, the number of levels above 0 to which numbers are rounded.")
    norm: Literal["l2", "max"] = Field("l2", description="n, what the highest level stands for: |v|, or max |v|.")
    rotate: bool = Field(False, description="Whether the vector is rotated at random before it is rounded.")


def make(section: QuantiseKeys) -> Compressor:
    """Return the compressor.

    >>> make(QuantiseKeys(levels=127)).bits(10)
    112
    """

    def apply(v: Tensor, key: int, out: Tensor) -> Tensor:
        if not section.rotate:
            return _rounded(v, section, key, out)
        turned = rotated(v, key)
        return rotated_back(_rounded(turned, section, key, turned), key, out)

    def bits(length: int) -> int:
        numbers = rotated_length(length) if section.rotate else length
        return 32 + numbers * (1 + section.levels.bit_length())

    return Compressor(apply, bits, keeps_zeros=not section.rotate)


def _rounded(v: Tensor, section: QuantiseKeys, key: int, out: Tensor) -> Tensor:
    levels = section.levels
    norm = float(torch.linalg.vector_norm(v) if section.norm == "l2" else torch.stack(torch.aminmax(v)).abs().max())
    if norm == 0 or levels / norm > torch.finfo(v.dtype).max:
        # Of numbers so small, the dtype has no quotient.
        return out.zero_()
    rounded = _by_torch if v.device.type != "cpu" or library.obstacle(SOURCE, v.dtype) else _in_one_pass
    return rounded(v, levels / norm, norm / levels, seeds.uniform(key), key, out)


def _by_torch(v: Tensor, scale: float, unit: float, behind: float, key: int, out: Tensor) -> Tensor:
    draws = seeds.stream(key, -(-len(v) * DRAWN_BITS // 64)).astype("<u8", copy=False)
    w = torch.from_numpy(draws.view("<i2")[: len(v)]).to(v.device, v.dtype).add_(behind).mul_(2.0**-DRAWN_BITS)
    # Rounded to even, a 0 stays 0 whatever w is.
    return torch.mul(v, scale, out=out).add_(w).round_().mul_(unit)


def _in_one_pass(v: Tensor, scale: float, unit: float, behind: float, key: int, out: Tensor) -> Tensor:
    assert v.is_contiguous()
    assert out.is_contiguous()
    real = ctypes.c_float if v.dtype is torch.float32 else ctypes.c_double
    library.library(SOURCE, v.dtype).rounded(
        ctypes.c_int64(len(v)),
        ctypes.c_void_p(v.data_ptr()),
        real(scale),
        real(unit),
        real(behind),
        ctypes.c_uint64(key),
        ctypes.c_void_p(out.data_ptr()),
    )
    return out
