"""Bounds labels, and warns of targets that are allowed and hardly meant: labels counted from 1, one-hot rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.errors import DataError

log = logging.getLogger("raysim")

LARGEST_LABEL = 2**24
"""Each label has an output of the model, so a larger one is an id or a number that was not meant as a label."""

MOST_ROWS = 1_000
"""Rows by which one-hot targets are recognised."""


def check_largest(label: int, where: str) -> None:
    """Refuse a label that is not meant as one.

    Raises:
        DataError: names the place and the label.
    """
    if label > LARGEST_LABEL:
        raise DataError(f"{where}: an integer label must be at most {LARGEST_LABEL}, but one is {label}")


MANY_CLASSES = 1_000
"""From which number of classes on it is looked at how many of them occur."""


def warn(targets: Sequence[npt.NDArray[Any]], has_classes: bool = False) -> None:
    """Warn of targets of all splits, rows first, where their form is hardly meant.

    Args:
        targets: of each split; all of one dtype, and of one shape but for the number of rows.
        has_classes: whether the number of classes was given.
    """
    some = [y for y in targets if len(y)]
    if not some:
        return
    if np.issubdtype(some[0].dtype, np.floating):
        if _is_one_hot(some[0][:MOST_ROWS]):
            log.warning(
                "each target is a row of zeros and one 1.0, and floating-point targets make a regression: if the rows "
                "are one-hot classes, pass the labels, y.argmax(axis=1)"
            )
    elif some[0].ndim == 1 and not has_classes:
        smallest, largest = min(int(y.min()) for y in some), max(int(y.max()) for y in some)
        if smallest == 1 < largest:
            log.warning(
                "labels go from 1 to %d, and classes are counted from 0: class 0 has no example, and the model has %d "
                "outputs. If 1 is the first class, subtract 1 from the labels",
                largest,
                largest + 1,
            )
        if largest >= MANY_CLASSES and (met := _distinct(some)) <= largest / 10:
            log.warning(
                "labels go up to %s, so the model has %s outputs, but only %s different labels occur: number them from "
                "0, such as by np.unique(y, return_inverse=True)[1], or look for a stray one",
                f"{largest:,}",
                f"{largest + 1:,}",
                f"{met:,}",
            )


def _is_one_hot(rows: npt.NDArray[Any]) -> bool:
    if rows.ndim != 2 or rows.shape[1] < 2:
        return False
    return bool(((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all())


def _distinct(targets: Sequence[npt.NDArray[Any]]) -> int:
    return len(np.unique(np.concatenate([np.unique(y) for y in targets])))
