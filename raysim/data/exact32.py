"""Finds whole numbers that float32 cannot hold: from 2**24 on it has not every one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_WHOLE = 2.0**53
"""Beyond this every number of float64 is whole, so that it says nothing."""


def changed(given: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which numbers are whole and another as float32. They are finite, also as float32.

    >>> changed(np.array([2**24, 2**24 + 1, 2**53 + 1])).tolist(), changed(np.array([0.1, 16777217.0])).tolist()
    ([False, True, True], [False, True])
    """
    if np.can_cast(given.dtype, np.float32):
        return np.zeros(given.shape, bool)
    # Compared as what was given: NumPy would compare as float64, which has not every whole number either.
    rounded = given.astype(np.float32)
    if given.dtype.kind == "O":
        pairs = zip(rounded.flat, given.flat, strict=True)
        found = [isinstance(number, int) and int(as_float) != number for as_float, number in pairs]
        return np.array(found, bool).reshape(given.shape)
    with np.errstate(invalid="ignore"):
        differs = rounded.astype(given.dtype) != given
    if given.dtype.kind != "f":
        return np.asarray(differs)
    return np.asarray(differs & (np.trunc(given) == given) & (np.abs(given) <= _WHOLE))
