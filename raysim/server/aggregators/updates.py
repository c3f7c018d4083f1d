"""Computes results from all updates of a round, one shard of coordinates at a time: U is (M, P_s), row i is h_i.

Rules that need every update (Krum, medians, ...) never hold M models in one memory: the updates lie in shards where
they were made, and a shard's result is small, (M, M) or (P_s,). Everything is in float64, whatever the model's dtype.
"""

from __future__ import annotations

from torch import Tensor

NUMBERS_PER_SHARD = 1 << 22
"""Of M x P_s: 32 MB in float64, on top of the shard itself."""

Bounds = tuple[int, int]
"""First coordinate, and the one after the last."""


def shards(num_params: int, clients: int) -> tuple[Bounds, ...]:
    """Cut the coordinates: a function of the model and the cohort alone, because it fixes the order of additions."""
    width = max(1, NUMBERS_PER_SHARD // max(1, clients))
    return tuple((start, min(start + width, num_params)) for start in range(0, num_params, width))


def gram(updates: Tensor) -> Tensor:
    """U U^T, (M, M): adds up over shards to all inner products of the updates."""
    wide = updates.double()
    return wide @ wide.T


def combine(updates: Tensor, coefficients: Tensor) -> Tensor:
    """sum_i c_i h_i on the shard, (P_s,); shards are put side by side."""
    return coefficients @ updates.double()


def trim(updates: Tensor, k: int) -> Tensor:
    """Return, per coordinate, the mean without the k lowest and the k highest values, (P_s,).

    >>> import torch
    >>> trim(torch.tensor([[1.0], [2.0], [4.0], [99.0]]), 1).tolist()
    [3.0]
    """
    ordered = updates.double().sort(dim=0).values
    return ordered[k : len(ordered) - k].mean(dim=0)


def squared_distances(updates: Tensor, target: Tensor) -> Tensor:
    """|h_i - target|^2 on the shard, (M,): adds up over shards."""
    return (updates.double() - target.double()).square().sum(dim=1)


def pairwise(inner: Tensor) -> Tensor:
    """|h_i - h_j|^2, (M, M), from the inner products; rounding never makes one negative."""
    own = inner.diagonal()
    return (own[:, None] + own[None, :] - 2 * inner).clamp_(min=0).fill_diagonal_(0)


def distances_to(squares: Tensor, coefficients: Tensor) -> Tensor:
    """|h_i - z| of z = sum_j c_j h_j with sum c = 1, (M,), from `pairwise` squares.

    |h_i - z|^2 = sum_j c_j D_ij - (1/2) sum_jk c_j c_k D_jk: the origin drops out, so nothing large cancels.
    """
    to_all = squares @ coefficients
    return (to_all - coefficients @ to_all / 2).clamp_(min=0).sqrt()
