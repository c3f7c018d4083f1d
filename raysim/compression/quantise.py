"""Rounds numbers to a few levels at random, without bias: QSGD, and TernGrad with one level.

Q(v) = n sign(v) (floor(u) + Bernoulli(u - floor(u))) / s        u = s |v| / n, n = |v|_2 or max |v|

Unbiased; its expected error is (n/s)^2 sum f (1 - f), f = u - floor(u). With `rotate`, R v is rounded and rotated back
(rotation.py). It sends n in 32 bits, and of each number its sign and its level.

Source: Alistarh et al. (2017), QSGD; Wen et al. (2017), TernGrad; docs/algorithms.md section 8.
Departure: TernGrad's clipping to 2.5 standard deviations is left out.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim import seeds
from raysim.compression.compressor import CompressionKeys, Compressor
from raysim.compression.rotation import rotated, rotated_back, rotated_length

DRAWN_BITS = 24
"""Of a uniform draw: as many as float32 holds."""


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
    order = 2 if section.norm == "l2" else torch.inf

    def apply(v: Tensor, key: int) -> Tensor:
        if not section.rotate:
            return _rounded(v, order, section.levels, key)
        turned = _rounded(rotated(v, key), order, section.levels, key)
        return rotated_back(turned, key, len(v))

    def bits(length: int) -> int:
        numbers = rotated_length(length) if section.rotate else length
        return 32 + numbers * (1 + section.levels.bit_length())

    return Compressor(apply, bits)


def _rounded(v: Tensor, order: float, levels: int, key: int) -> Tensor:
    norm = float(torch.linalg.vector_norm(v, order))
    if norm == 0:
        return torch.zeros_like(v)
    # floor(u + w) with w uniform on [0, 1): signed integers of 24 bits are w - 1/2.
    draws = torch.from_numpy(seeds.words(key, len(v))).to(v.device).bitwise_right_shift_(32 - DRAWN_BITS)
    level = v.abs().mul_(levels / norm).add_(0.5).add_(draws, alpha=2.0**-DRAWN_BITS).floor_()
    return level.copysign_(v).mul_(norm / levels)
