"""Draws the noise of privacy: normals for every number that clients send, by the seed and an address."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim import seeds
from raysim.models import vectors
from raysim.models.layout import Layout


def normals(seed: int, layout: Layout, dtype: torch.dtype, *address: int, of_client: bool = False) -> Tensor:
    """Return a vector of the model's size with a standard normal in place of each number of the layout; others are 0.

    Args:
        seed: of the run.
        layout: the groups that have noise.
        dtype: what they are drawn in.
        of_client: whether a client draws it, and not the server.
        address: after the seed; one address has the same normals wherever and whenever it is drawn.

    >>> layout = Layout.of([("w", torch.zeros(3))])
    >>> drawn = normals(0, layout, torch.float32, 7)
    >>> layout.size, int((drawn != 0).sum()), torch.equal(drawn, normals(0, layout, torch.float32, 7))
    (32, 3, True)
    """
    drawn = vectors.zeros(layout.size, dtype, torch.device("cpu"))
    key = seeds.key(seed, "privacy/client", *address) if of_client else seeds.key(seed, "privacy/sum", *address)
    generator = seeds.generator(key)
    for piece in layout.pieces(drawn):
        of_piece = piece.numpy()
        generator.standard_normal(len(of_piece), dtype=of_piece.dtype, out=of_piece)
    return drawn
