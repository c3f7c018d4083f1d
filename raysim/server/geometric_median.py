"""Geometric median by Weiszfeld's steps: b_i = p_i / max(nu, |z - h_i|); z = sum b_i h_i / sum b_i.

z_0 is the weighted mean, and z stays a weighted mean, so the inner products of the updates say every distance.

Source: Pillutla et al. (2019), algorithm 2 (their nu is 1e-6 and they take 4 steps); docs/algorithms.md section 4.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from raysim.section import Section
from raysim.server.updates import distances_to, pairwise


class GeometricMedian(Section):
    """iterations: Weiszfeld's steps. nu: keeps a step defined where z meets an update."""

    name: Literal["geometric_median"] = "geometric_median"
    iterations: NonNegativeInt = 4
    nu: PositiveFloat = 1e-6


def coefficients(section: GeometricMedian, inner: Tensor, weights: Tensor) -> Tensor:
    """Coefficients of the updates, adding up to 1; `weights` are w_i, (M,)."""
    squares = pairwise(inner)
    p = weights / weights.sum()
    b = p
    for _ in range(section.iterations):
        b = p / distances_to(squares, b).clamp(min=section.nu)
        b = b / b.sum()
    return b
