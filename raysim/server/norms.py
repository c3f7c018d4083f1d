"""Norms of the parameter groups of a flat vector, accumulated in float64 whatever the vector's dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raysim.layout import Layout

BLOCK = 1 << 16
"""Numbers converted at a time: they stay in the cache, where a reduction that converts as it reads does not."""


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
