"""Rounds numbers to a few levels at random, without bias: QSGD, and TernGrad with one level.

Q(v) = n sign(v) (floor(u) + Bernoulli(u - floor(u))) / s        u = s |v| / n, n = |v|_2 or max |v|

which is n/s times the integer nearest to s v / n + w, w uniform between -1/2 and 1/2. Unbiased; its expected error is
(n/s)^2 sum f (1 - f), f = u - floor(u). With `rotate`, R v is rounded and rotated back
(rotation.py). It sends n in 32 bits, and of each number its sign and its level.

Source: Alistarh et al. (2017), QSGD; Wen et al. (2017), TernGrad; docs/algorithms.md section 7.
Departure: TernGrad's clipping to 2.5 standard deviations is left out.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from raysim import seeds
from raysim.compression import passes
from raysim.compression.compressor import Compressed, Compressor, ErrorFeedback, Of, Scope, Scoped
from raysim.compression.passes import Groups, Loss
from raysim.compression.rotation import rotated, rotated_back, rotated_length
from raysim.config.section import Section


class QuantiseKeys(BaseModel):
    """Keys of stochastic rounding."""

    scope: Scope = Scoped
    levels: int = Field(ge=1, le=2**16, description="s, the number of levels above 0 to which numbers are rounded.")
    norm: Literal["l2", "max"] = Field("l2", description="n, what the highest level stands for: |v|, or max |v|.")
    rotate: bool = Field(False, description="Whether the vector is rotated at random before it is rounded.")


class SentQuantise(QuantiseKeys, Section):
    """Numbers rounded to a few levels at random.

    Source: Alistarh et al. (2017), QSGD; Wen et al. (2017), TernGrad.
    """

    error_feedback: bool = ErrorFeedback
    name: Literal["quantise"] = "quantise"


class ReceivedQuantise(QuantiseKeys, Section):
    """Numbers rounded to a few levels at random.

    Source: Alistarh et al. (2017), QSGD; Wen et al. (2017), TernGrad.
    """

    of: Compressed = Of
    name: Literal["quantise"] = "quantise"


def make(section: QuantiseKeys) -> Compressor:
    """Return the compressor.

    >>> make(QuantiseKeys(levels=127)).bits(10)
    112
    """

    def apply(v: Tensor, key: int, out: Tensor) -> Tensor:
        turned = rotated(v, key) if section.rotate else v
        into = turned if section.rotate else out
        if (steps := _steps(turned, section)) is None:
            into.zero_()
        else:
            passes.rounded(turned, *steps, _after(key) if section.rotate else key, into)
        return rotated_back(into, key, out) if section.rotate else out

    def send(v: Tensor, key: int, out: Tensor, groups: Groups) -> Loss:
        if section.rotate or (steps := _steps(v, section)) is None:
            return passes.measured(v, apply(v, key, out), groups)
        return passes.rounded_and_measured(v, *steps, key, out, groups)

    def bits(length: int) -> int:
        numbers = rotated_length(length) if section.rotate else length
        return 32 + numbers * (1 + section.levels.bit_length())

    return Compressor(apply, bits, keeps_zeros=not section.rotate, send=send)


def _after(key: int) -> int:
    """Return the key of rounding after a rotation: with the key of the signs, the errors would follow them."""
    return int(seeds.derive(np.asarray(key, dtype=np.uint64), 0))


class _Steps(NamedTuple):
    """Factors s/n, before numbers are rounded, and n/s."""

    scale: float
    unit: float


def _steps(v: Tensor, section: QuantiseKeys) -> _Steps | None:
    """Return the factors; None: every number becomes 0."""
    norm = float(torch.linalg.vector_norm(v)) if section.norm == "l2" else passes.largest(v)
    if norm == 0 or section.levels / norm > torch.finfo(v.dtype).max:
        # Of numbers so small, the dtype has no quotient.
        return None
    return _Steps(section.levels / norm, norm / section.levels)
