"""Checks arrays of files from elsewhere: real numbers, and whole numbers in a range."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.errors import DataError


def real(values: npt.NDArray[Any], name: str, where: str) -> npt.NDArray[Any]:
    """Return the values; DataError if they are no real numbers, which NumPy would convert to some."""
    if values.dtype.kind not in "iuf":
        raise DataError(f"{where}: expected numbers as {name}, found {values.dtype}")
    return values


def whole(values: npt.NDArray[Any], name: str, most: int, where: str) -> npt.NDArray[np.int64]:
    """Return the values as int64; DataError if one is not a whole number in 0..most.

    >>> whole(np.array([0.0, 2.0]), "labels", 9, "train.h5").tolist()
    [0, 2]
    """
    _check(values, name, most, where)
    return values.astype(np.int64)


def whole_bytes(values: npt.NDArray[Any], name: str, where: str) -> npt.NDArray[np.uint8]:
    """Return the values as bytes; DataError if one is not a whole number in 0..255. Bytes take no memory of their own.

    >>> whole_bytes(np.array([0.0, 255.0]), "pixels", "train.h5").tolist()
    [0, 255]
    """
    _check(values, name, 255, where)
    return values.astype(np.uint8, copy=False)


def _check(values: npt.NDArray[Any], name: str, most: int, where: str) -> None:
    real(values, name, where)
    if values.size and not (values.min() >= 0 and values.max() <= most):
        raise DataError(
            f"{where}: expected {name} in 0..{most}, found {values.min()} to {values.max()}: the file may be another "
            f"edition"
        )
    if values.dtype.kind == "f" and (parts := np.trunc(values) != values).any():
        raise DataError(
            f"{where}: expected whole numbers as {name}, found {values[parts].flat[0]}: the file may be another edition"
        )
