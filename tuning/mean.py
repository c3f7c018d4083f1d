"""Computes the mean of numbers, whose sum may not be finite."""

from __future__ import annotations

import math
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Return the mean, whose sum is exact; NaN of infinities with both signs."""
    try:
        return math.fsum(values) / len(values)
    except ValueError:
        return math.nan
    except OverflowError:
        # The sum of finite numbers is none; their mean is.
        return math.fsum(value / len(values) for value in values)
