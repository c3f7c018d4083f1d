"""Measures how much the updates of a round agree, from which the gradient similarity index and FedGLAD are computed.

GSI of the vectors and weights that enter the mean, over parameters P:

GSI_P = sqrt( sum_i p_i |g_i,P|^2 / |sum_i p_i g_i,P|^2 ) = sqrt( 1 + sum_i p_i |g_i,P - g_P|^2 / |g_P|^2 ) >= 1,

and 1 where the mean is 0. 1 means that all clients agree. A rule may have coefficients p_i below 0, no shares: where
the first sum is smaller than the second, or below 0, the index is 1 too. Both sums are additive over clients and over
groups, so no client's update travels for it.

Source: Yang et al. (2023), equations 9 and 10. Departure: their appendix Q prints a further 1 / r for weighted means,
which would differ from equation 9 at equal weights: dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from raysim.models.layout import Layout
from raysim.models.vectors import group_norms
from raysim.server.sums import Sums


class Agreement(NamedTuple):
    """Per parameter group, of the vectors that enter the mean: sum_i p_i |g_i,P|^2 and |sum_i p_i g_i,P|^2."""

    mean_squared_norms: Sequence[float]
    squared_norms_of_mean: Sequence[float]


def agreement(layout: Layout, sums: Sums) -> Agreement:
    """The agreement of at least one client, from sums."""
    # fednova's tau_eff; 1 elsewhere.
    effective = sums.normaliser / sums.weight
    return Agreement(
        (sums.squared_norms * (effective**2 / sums.weight)).tolist(),
        [(norm * effective / sums.weight) ** 2 for norm in group_norms(layout, sums.delta)],
    )


def similarity(layout: Layout, of: Agreement, prefix: str = "") -> dict[str, float | None]:
    """`gsi` of the whole model and `gsi/<group>` of every group, under names that begin with `prefix`."""
    figures: dict[str, float | None] = {
        f"{prefix}gsi": gsi(sum(of.mean_squared_norms), sum(of.squared_norms_of_mean)),
    }
    for name, spread, mean in zip(layout.names, *of, strict=True):
        figures[f"{prefix}gsi/{name}"] = gsi(spread, mean)
    return figures


def gsi(mean_squared_norm: float, squared_norm_of_mean: float) -> float:
    """GSI from sum_i p_i |g_i,P|^2 and |sum_i p_i g_i,P|^2.

    >>> gsi(25.0, 16.0)  # 7 and 1, weighted alike
    1.25
    >>> gsi(16.0, 16.0)  # 4 and 4
    1.0
    >>> gsi(-7.0, 1.0)  # 3 and 5, with the coefficients 2 and -1
    1.0
    """
    if squared_norm_of_mean == 0:
        return 1.0
    # Where all clients agree rounding may fall below 1. A rule's coefficients may be below 0, and with them the sum.
    return max(1.0, math.sqrt(max(0.0, mean_squared_norm / squared_norm_of_mean)))
