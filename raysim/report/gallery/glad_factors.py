"""Draws FedGLAD's factor of every parameter group, between its bounds 1 -+ gamma t, and the ratio before its bounds.

Source: Yang et al. (2023), figure 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from raysim.report.gallery import parameters, reference_marks
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.parameters import Values
from raysim.report.groups import Group
from raysim.report.looks import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FACTOR, RATIO = "glad_factor", "gsi_unbounded"


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for each of the first groups that used FedGLAD; parameter groups of one factor share a line."""
    used = [group for group in groups if group.runs[0].experiment.server.glad is not None]
    yield from parameters.figures(used, FACTOR, "glad-factors", "FedGLAD's factors", _caption, _factors)


def before_bounds(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield the same figures of the ratio GSI / B that the bounds then limit."""
    yield from parameters.figures(
        groups, RATIO, "gsi-unbounded", "FedGLAD's ratio before its bounds", _ratio_caption, _ratios
    )


def _gamma(group: Group) -> float | None:
    glad = group.runs[0].experiment.server.glad
    return None if glad is None or isinstance(glad.gamma, str) else glad.gamma


def _caption(group: Group) -> str:
    return (
        f"The factor on each parameter group's step, mean over trials; {_bounds_in_words(group)}. Above 1: clients "
        f"agree less than they used to."
    )


def _ratio_caption(group: Group) -> str:
    return (
        f"A round's similarity index over the baseline of the rounds before it, for each unit of FedGLAD's scope; "
        f"{_bounds_in_words(group)}."
    )


def _bounds_in_words(group: Group) -> str:
    gamma = _gamma(group)
    return "unbounded" if gamma is None else f"dashed: the bounds, 1 - {gamma:g} t and 1 + {gamma:g} t"


def _factors(group: Group, found: Values, axes: Axes) -> None:
    axes.axhline(1, color=INK, linewidth=0.8)
    parameters.draw(found, "factor", axes)
    _bounds(group, found, axes)


def _ratios(group: Group, found: Values, axes: Axes) -> None:
    axes.axhline(1, color=INK, linewidth=0.8)
    parameters.draw(found, "GSI / B", axes)
    _bounds(group, found, axes)


def _bounds(group: Group, found: Values, axes: Axes) -> None:
    low, high = axes.get_ylim()
    if (gamma := _gamma(group)) is not None:
        t = next(iter(found.values())).rounds.astype(np.float64) - 1
        for sign in (-1, 1):
            reference_marks.dashed(axes, t + 1, 1 + sign * gamma * t)
    axes.set_ylim(low, high)
