"""EDEN, and DRIVE with one bit: rotates at random, and sends the nearest centroid of a normal number for each number.

u = R v        q_j the nearest of the 2^b Lloyd-Max centroids of N(0, 1) to u_j sqrt(D) / |u|        Q(v) = c R^-1 q

"unbiased": c = |v|^2 / (q . u). "least": c = (q . u) / |q|^2, the nearest multiple, which is biased. It sends c in 32
bits and b bits of each of the D numbers of u.

Source: Vargaftik et al. (2021), DRIVE; Vargaftik et al. (2022), EDEN; docs/algorithms.md section 7.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from raysim.compression.compressor import Compressed, Compressor, ErrorFeedback, Of, Scale, Scaling, Scope, Scoped
from raysim.compression.lloyd_max import centroids
from raysim.compression.rotation import rotated, rotated_back, rotated_length
from raysim.config.section import Section


class EdenKeys(BaseModel):
    """Keys of EDEN."""

    scope: Scope = Scoped
    bits: int = Field(ge=1, le=8, description="Bits of each number; 1 is DRIVE.")
    scale: Scale | None = Scaling


class SentEden(EdenKeys, Section):
    """EDEN, and DRIVE with one bit: the nearest centroids after a random rotation.

    Source: Vargaftik et al. (2021), DRIVE; Vargaftik et al. (2022), EDEN.
    """

    error_feedback: bool = ErrorFeedback
    name: Literal["eden"] = "eden"


class ReceivedEden(EdenKeys, Section):
    """EDEN, and DRIVE with one bit: the nearest centroids after a random rotation.

    Source: Vargaftik et al. (2021), DRIVE; Vargaftik et al. (2022), EDEN.
    """

    of: Compressed = Of
    name: Literal["eden"] = "eden"


def make(section: EdenKeys, scale: Scale) -> Compressor:
    """Return the compressor.

    >>> make(EdenKeys(bits=2), "unbiased").bits(5)
    48
    """
    points = centroids(section.bits)[2 ** (section.bits - 1) :]
    bounds, gaps = ((points[1:] + points[:-1]) / 2).tolist(), points.diff().tolist()

    def apply(v: Tensor, key: int, out: Tensor) -> Tensor:
        u = rotated(v, key)
        square = torch.dot(u, u)
        if not square:
            return out.zero_()
        sizes = u.abs().mul_((len(u) / square).sqrt())
        q = torch.full_like(u, float(points[0]))
        # A comparison with each bound takes a fraction of a search's time.
        for bound, gap in zip(bounds, gaps, strict=True):
            q.add_(sizes > bound, alpha=gap)
        q.copysign_(u)
        along = torch.dot(q, u)
        factor = square / along if scale == "unbiased" else along / torch.dot(q, q)
        return rotated_back(q, key, out).mul_(factor)

    return Compressor(apply, lambda length: 32 + section.bits * rotated_length(length))
