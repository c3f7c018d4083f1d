"""Gradient similarity index of the vectors and weights that enter the mean, over parameters P:

GSI_P = sqrt( sum_i p_i |g_i,P|^2 / |sum_i p_i g_i,P|^2 ) = sqrt( 1 + sum_i p_i |g_i,P - g_P|^2 / |g_P|^2 ) >= 1,

and 1 where the mean is 0. 1 means that all clients agree. Both sums are additive over clients and over groups, so no
client's update travels for it.

Source: Yang et al. (2023), equations 9 and 10. Departure: their appendix Q prints a further 1 / r for weighted means,
which would differ from equation 9 at equal weights: dropped.
"""

from __future__ import annotations

import math


def gsi(mean_squared_norm: float, squared_norm_of_mean: float) -> float:
    """GSI from sum_i p_i |g_i,P|^2 and |sum_i p_i g_i,P|^2."""
    if squared_norm_of_mean == 0:
        return 1.0
    # Where all clients agree rounding may fall below 1.
    return max(1.0, math.sqrt(mean_squared_norm / squared_norm_of_mean))
