"""Draws discrete Gaussians, rounds at random within a norm, and bounds how far sums of the former are from one of them.

Sources: Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", algorithm 3; Kairouz, Liu
and Steinke (2021), "The distributed discrete Gaussian mechanism for federated learning with secure aggregation".
"""

from __future__ import annotations

import math

import numpy as np

from raysim.arrays import Float64s


def discrete_gaussian(rng: np.random.Generator, sigma: float, count: int) -> Float64s:
    """Return integers y with probabilities in proportion to exp(-y^2 / (2 sigma^2)), by rejection of Laplace's."""
    drawn, t = np.empty(0), math.floor(sigma) + 1
    while len(drawn) < count:
        # The difference of two geometric numbers is a discrete Laplace number: exp(-|y| / t).
        some = 2 * (count - len(drawn)) + 16
        y = (rng.geometric(-math.expm1(-1 / t), some) - rng.geometric(-math.expm1(-1 / t), some)).astype(np.float64)
        kept = rng.random(some) < np.exp(-((np.abs(y) - sigma**2 / t) ** 2) / (2 * sigma**2))
        drawn = np.concatenate([drawn, y[kept]])
    return drawn[:count]


def rounded(rng: np.random.Generator, values: Float64s, bound: float) -> Float64s:
    """Return the values rounded up or down at random, without bias, drawn anew until their norm is within the bound."""
    low = np.floor(values)
    while True:
        draws = low + (rng.random(len(values)) < values - low)
        if np.linalg.norm(draws) <= bound:
            return draws


def rounded_norm(r: float, dimension: int) -> float:
    """B(r) = min(r + sqrt D, sqrt(r^2 + D/4 + r + sqrt(D)/2)): of a vector of norm r, rounded; exceeded at times.

    >>> rounded_norm(1.0, 4)
    2.0
    """
    root = math.sqrt(dimension)
    return min(r + root, math.sqrt(r**2 + dimension / 4 + r + root / 2))


def divergence_of_sum(sigma: float, clients: int) -> float:
    """tau = 10 sum_{k=1}^{M-1} exp(-2 pi^2 sigma^2 k/(k+1)): how far a sum of M draws is from one draw, a number."""
    return 10 * math.fsum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, clients))
