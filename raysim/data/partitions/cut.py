"""Computes the sizes of parts, and cuts a sequence into them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s


def even_sizes(total: int, num_parts: int) -> Int64s:
    """Return sizes that differ by at most one and sum to `total`, larger sizes first.

    >>> even_sizes(7, 3).tolist()
    [3, 2, 2]
    """
    return total // num_parts + (np.arange(num_parts, dtype=np.int64) < total % num_parts)


def cut(sequence: Int64s, sizes: Int64s) -> list[Int64s]:
    """Cut a sequence into consecutive parts of these sizes.

    >>> [part.tolist() for part in cut(np.arange(5), np.array([2, 3]))]
    [[0, 1], [2, 3, 4]]
    """
    return np.split(sequence, np.cumsum(sizes)[:-1])


def apportion(total: int, weights: npt.NDArray[np.float64], priority: Int64s) -> Int64s:
    """Return whole numbers in proportion to weights, by largest remainder.

    Part k gets floor(total * weights[k] / sum(weights)), and the parts with the largest remainders one more each.

    >>> apportion(10, np.array([0.5, 0.25, 0.25]), np.array([0, 2, 1])).tolist()
    [5, 2, 3]

    Args:
        total: what the numbers sum to.
        weights: nonnegative, with a positive sum.
        priority: orders equal remainders, lower values first.
    """
    quotas = total * (weights / weights.sum())
    # A quota that is exactly whole may be a rounding error below; without this it would lose its unit to a neighbour.
    floors: Int64s = np.floor(quotas + 1e-9).astype(np.int64)
    remainders = np.round(quotas - floors, 9)
    order = np.lexsort((priority, -remainders))
    missing = total - int(floors.sum())
    floors[order[:missing]] += 1
    return floors
