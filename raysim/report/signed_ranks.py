"""Computes the p-value of Wilcoxon's signed ranks of paired differences.

Source: Wilcoxon (1945), Individual comparisons by ranking methods. Differences of 0 are left out, and equal sizes share
their mean rank; accuracies of few examples have many of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

EXACT = 50
"""Up to so many differences p is exact: all choices of signs are counted, in whole numbers that float64 holds."""


def p_of_signed_ranks(differences: npt.NDArray[Any]) -> float:
    """Return the two-sided p that differences, not all of them 0, lie around 0.

    More than `EXACT` have the normal approximation.

    >>> p_of_signed_ranks(np.array([1.0, 1.0, 1.0, 0.0, 2.0])), p_of_signed_ranks(np.array([1.0, -1.0]))
    (0.125, 1.0)
    """
    moved = differences[differences != 0]
    if len(moved) > EXACT:
        from scipy import stats  # slow to import

        return float(stats.wilcoxon(moved).pvalue)
    _, place, counts = np.unique(np.abs(moved), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    doubled = (2 * last - counts + 1)[place]  # the first rank of equal sizes, and the last one
    rising, total = int(doubled[moved > 0].sum()), int(doubled.sum())
    choices = np.zeros(total + 1)
    choices[0] = 1
    for rank in doubled.tolist():
        choices[rank:] += choices[: total + 1 - rank].copy()
    as_far = choices[: min(rising, total - rising) + 1].sum()
    return min(1.0, 2 * float(as_far) / 2.0 ** len(moved))
