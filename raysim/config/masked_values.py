"""Counts masked values of what a script hands over: NumPy takes what lies under the mask, also of arrays in lists."""

from __future__ import annotations

from types import UnionType
from typing import Any

import numpy as np


def masked_values(values: Any) -> int:
    """Return how many values are masked, in an array or in arrays in a list.

    >>> masked_values(np.ma.masked_greater([1, 2, 3], 1)), masked_values([np.ma.masked, 1.0]), masked_values([1.0])
    (2, 1, 0)
    """
    if isinstance(values, np.ma.MaskedArray):
        return int(np.sum(np.ma.getmaskarray(values)))
    return sum(map(masked_values, values)) if holds(values, np.ma.MaskedArray) else 0


def holds(values: Any, kind: type | UnionType) -> bool:
    """Whether a list, or one of its lists, has a value of this kind, which NumPy's array of it does not show."""
    if not isinstance(values, tuple | list):
        return False
    kinds = set(map(type, values))
    return any(issubclass(each, kind) for each in kinds) or (
        any(issubclass(each, tuple | list) for each in kinds) and any(holds(each, kind) for each in values)
    )
