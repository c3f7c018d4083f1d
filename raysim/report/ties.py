"""Makes numbers equal that differ by rounding only, before they are ranked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raysim.arrays import Float64s

EQUAL = 1e-12
"""Share of the numbers of which they were computed, up to which rounding may part equal ones."""


def levelled(numbers: Sequence[float] | Float64s, scale: float) -> Float64s:
    """Return the numbers; each of those that rounding parts is the smallest of them.

    Args:
        numbers: (n,), without NaN.
        scale: the largest size of the numbers of which they were computed: 0.8 and 0.75, not their difference 0.05.

    >>> levelled([0.8 - 0.75, 0.3, 0.7 - 0.65], scale=1.0).tolist()
    [0.04999999999999993, 0.3, 0.04999999999999993]
    """
    given = np.asarray(numbers, dtype=np.float64)
    order = np.argsort(given, kind="stable")
    rising = given[order]
    with np.errstate(invalid="ignore"):
        # Infinities are equal as they are.
        apart = ~(rising[1:] - rising[:-1] <= EQUAL * scale)
    first = np.r_[True, apart][: len(given)]
    level = np.empty_like(given)
    level[order] = rising[first][np.cumsum(first) - 1]
    return level
