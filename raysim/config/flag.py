"""Refuses what is no truth value in the place of one: any text counts as true, so overwrite="no" replaced a run."""

from __future__ import annotations

import numpy as np

from raysim.config.plain import shown
from raysim.errors import ExperimentError


def check_flag(name: str, value: object) -> None:
    """Refuse all but True and False.

    Raises:
        ExperimentError: it is something else.

    >>> check_flag("overwrite", True)
    >>> check_flag("overwrite", "no")
    Traceback (most recent call last):
    raysim.errors.ExperimentError: overwrite must be True or False, but got 'no'.
    """
    if not isinstance(value, bool | np.bool_):
        raise ExperimentError(f"{name} must be True or False, but got {shown(value)}.")


def check_choice(name: str, value: object) -> None:
    """Refuse all but True, False and None, which leaves it to the function.

    Raises:
        ExperimentError: it is something else.
    """
    if value is not None:
        check_flag(name, value)
