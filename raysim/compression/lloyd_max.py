"""Computes the Lloyd-Max quantiser of the normal distribution: the 2^b centroids with the least mean squared error.

Each centroid is the mean of its cell, c_i = E[X | a_i < X < a_{i+1}], and each bound the middle of two centroids.
Newton's method solves these equations; it starts at the quantiles of N(0, 3), which are the limit for many centroids.

Source: Lloyd (1982); Max (1960); docs/algorithms.md section 7.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Float64s

_MOST_STEPS = 100
_NORMAL = NormalDist()


@cache
def centroids(bits: int) -> Tensor:
    """Return the 2^b centroids, float64, in rising order.

    >>> centroids(1), (2 / torch.pi) ** 0.5
    (tensor([-0.7979,  0.7979], dtype=torch.float64), 0.7978845608028654)
    """
    count = 2**bits
    limit = NormalDist(0, 3**0.5)
    levels = np.array([limit.inv_cdf((i + 0.5) / count) for i in range(count)])
    for _ in range(_MOST_STEPS):
        step = np.linalg.solve(*_equations(levels))
        levels = levels - step
        if abs(step).max() < 1e-9:
            break
    # The distribution is symmetric, and so are they except for rounding.
    return torch.from_numpy((levels - levels[::-1]) / 2)


def _equations(points: Float64s) -> tuple[Float64s, Float64s]:
    """Return the Jacobian of c_i - E[X | cell i] and its value."""
    bounds = (points[1:] + points[:-1]) / 2
    density = np.array([0.0, *(_NORMAL.pdf(bound) for bound in bounds), 0.0])
    below = np.array([0.0, *(_NORMAL.cdf(bound) for bound in bounds), 1.0])
    share = np.diff(below)
    means = -np.diff(density) / share
    # Derivatives of a cell's mean by its lower and its upper bound; the outermost bounds do not move.
    by_lower = density[1:-1] * (means[1:] - bounds) / share[1:] / 2
    by_upper = density[1:-1] * (bounds - means[:-1]) / share[:-1] / 2
    own = 1 - np.append(0, by_lower) - np.append(by_upper, 0)
    return np.diag(own) - np.diag(by_lower, -1) - np.diag(by_upper, 1), points - means
