"""Checks the figures that a part says of itself: they become columns of a run's records, beside raysim's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

from raysim.config.columns import is_taken
from raysim.config.plain import LONGEST_KEY, shown, text_refusal
from raysim.errors import ExperimentError


def own_figures(what: str, given: Any) -> dict[str, float]:
    """Return figures by name, as numbers that a table holds.

    >>> import numpy as np, torch
    >>> own_figures("step", {"trust": np.float32(0.5), "clipped": torch.tensor(2)})
    {'trust': 0.5, 'clipped': 2.0}

    Args:
        what: names the function, as a message begins.
        given: what it returned.

    Raises:
        ExperimentError: a figure is no number, or its name no name of a column, or one that every run has.
    """
    requirement = f"{what} must return figures as a mapping from names to numbers"
    if not isinstance(given, Mapping):
        raise ExperimentError(f"{requirement}, but returned {shown(given)}.")
    for name, value in given.items():
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_KEY or text_refusal(name):
            raise ExperimentError(f"{requirement}, but a name is {shown(name)}.")
        if is_taken(name):
            raise _not_apart(what, [name for name in given if isinstance(name, str) and is_taken(name)])
        if not _is_number(value):
            raise ExperimentError(f"{requirement}, but {shown(name)} is {shown(value)}.")
    try:
        # A figure with a gradient's history is no warning of torch's.
        return {name: float(value.detach() if isinstance(value, Tensor) else value) for name, value in given.items()}
    except OverflowError as error:
        raise ExperimentError(f"{requirement}, but {shown(dict(given))} has one beyond them.") from error


def check_apart(what: str, own: Collection[str], others: Collection[str]) -> None:
    """Refuse figures whose names are columns of raysim's: one of both would be lost.

    Raises:
        ExperimentError: names them.
    """
    if shared := sorted(set(own) & set(others)):
        raise _not_apart(what, shared)


def joined(metrics: Mapping[str, float | None], more: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return a round's figures, among which there may be parts' own, with more of raysim's.

    Raises:
        ExperimentError: a part's own figure has the name of one of these.
    """
    check_apart("The server optimizer or the correction", metrics, more)
    return {**metrics, **more}


def _not_apart(what: str, names: Sequence[str]) -> ExperimentError:
    return ExperimentError(
        f"{what} names figures as columns of raysim's are named, {', '.join(names)}: give them other names."
    )


def _is_number(value: Any) -> bool:
    """Whether it is one real number: of Python, of NumPy, or a tensor or an array without an axis."""
    if isinstance(value, Tensor):
        return not value.is_nested and value.dim() == 0 and not value.is_complex() and value.device.type != "meta"
    if isinstance(value, np.ndarray) and np.ma.is_masked(value):
        return False
    if isinstance(value, np.ndarray | np.generic):
        # np.bool_, which a comparison makes, is no Real.
        return value.ndim == 0 and value.dtype.kind in "biuf"
    return isinstance(value, Real)
