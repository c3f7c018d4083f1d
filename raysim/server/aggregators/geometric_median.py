"""Geometric median by Weiszfeld's steps: b_i = p_i / max(nu, |z - h_i|); z = sum b_i h_i / sum b_i.

z_0 is the weighted mean, and z stays a weighted mean, so the inner products of the updates say every distance.

Source: Pillutla et al. (2019), algorithm 2 (their nu is 1e-6 and they take 4 steps); docs/algorithms.md section 4.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Epsilon, Whole
from raysim.server.aggregators.rule import Coefficients
from raysim.server.aggregators.updates import distances_to, pairwise


class GeometricMedian(Section):
    """The geometric median, by Weiszfeld's steps."""

    name: Literal["geometric_median"] = "geometric_median"
    iterations: Whole = Field(4, description="Number of Weiszfeld's steps.")
    nu: Epsilon = Field(1e-6, description="Keeps a step defined where z meets an update.")


def make(section: GeometricMedian) -> Coefficients:
    """A weighted mean of the updates."""
    return Coefficients(partial(coefficients, section), section.name)


def coefficients(section: GeometricMedian, inner: Tensor, weights: Tensor) -> Tensor:
    """Coefficients of the updates, adding up to 1; `weights` are w_i, (M,).

    >>> import torch
    >>> h = torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64)  # z = 1: distances 1, 1, 2
    >>> coefficients(GeometricMedian(iterations=1), h.outer(h), torch.ones(3, dtype=torch.float64)).tolist()
    [0.4, 0.4, 0.2]
    """
    squares = pairwise(inner)
    p = weights / weights.sum()
    b = p
    for _ in range(section.iterations):
        b = p / distances_to(squares, b).clamp(min=section.nu)
        b = b / b.sum()
    return b
