"""A model of two groups, [1, 1] and [2], and steps on it."""

from __future__ import annotations

import pytest
import torch

from raysim.models.layout import Layout
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer

LAYOUT = Layout.of([("a", torch.zeros(2)), ("b", torch.zeros(1))])


def vector(a: list[float], b: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return LAYOUT.flatten({"a": torch.tensor(a, dtype=dtype), "b": torch.tensor(b, dtype=dtype)}, dtype)


def values(flat: torch.Tensor) -> list[float]:
    """The three numbers, without the gaps, which must be zero."""
    assert flat.abs().sum().item() == pytest.approx(sum(p.abs().sum().item() for p in LAYOUT.pieces(flat)), rel=1e-6)
    return [x for piece in LAYOUT.pieces(flat) for x in piece.tolist()]


def path(
    optimizer: ServerOptimizer,
    start: torch.Tensor,
    gradients: list[torch.Tensor],
    lr: float,
    factors: tuple[float, float] | None = None,
) -> list[list[float]]:
    """The model after each step."""
    params, state, seen = start, optimizer.init(start), []
    for k, g in enumerate(gradients, start=1):
        params, state, _ = optimizer.step(params, Descent(LAYOUT, g, lr, k, factors), state)
        seen.append(values(params))
    return seen
