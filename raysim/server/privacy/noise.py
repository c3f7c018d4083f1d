"""Draws the noise of privacy: normals for every number that clients send, by the seed and an address."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim import seeds
from raysim.models import vectors
from raysim.models.layout import Layout


def normals(seed: int, layout: Layout, dtype: torch.dtype, *address: int) -> Tensor:
    """Return a vector of the model's size with a standard normal in place of each number of the layout; others are 0.

    Args:
        seed: of the run.
        layout: the groups that have noise.
        dtype: what they are drawn in.
        address: after the seed; one address has the same normals wherever and whenever it is drawn.
    """
    drawn = vectors.zeros(layout.size, dtype, torch.device("cpu"))
    generator = seeds.generator(seeds.key(seed, "privacy/sum", *address))
    for piece in layout.pieces(drawn):
        of_piece = piece.numpy()
        generator.standard_normal(len(of_piece), dtype=of_piece.dtype, out=of_piece)
    return drawn
