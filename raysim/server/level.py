"""A level that follows a quantile of what clients report as one bit: C <- C exp(-lr (b - q)).

b is the *unweighted* fraction of the cohort at or below C, q the quantile that C shall be.

Source: Andrew et al. (2021), algorithm 1; Charles et al. (2021), algorithm 2.
"""

from __future__ import annotations

import math


def follow(level: float, fraction_within: float, quantile: float, lr: float) -> float:
    """The level of the next round."""
    return level * math.exp(-lr * (fraction_within - quantile))
