"""Draws the gradients' similarity index of parameter groups: the cohort's, all clients', and FedGLAD's baseline.

Source: Yang et al. (2023), figures 3 and 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raysim.report.gallery import axes as ticks
from raysim.report.gallery import curves, parameters, reference_marks
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.gallery.parameters import Values
from raysim.report.groups import Group
from raysim.report.looks import GREY, nth
from raysim.report.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COHORT, TRUE, BASELINE = "gsi", "probe/gsi", "gsi_baseline"
LINES = MappingProxyType({COHORT: "of the cohort", BASELINE: "baseline B", TRUE: "of all clients"})
MOST_PANELS = 6
LABEL = "similarity index"


def by_parameters(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield the index of every parameter group, a figure for each of the first methods."""
    several = [group for group in groups if parameters.names(group, COHORT) != [parameters.WHOLE]]
    yield from parameters.figures(
        several, COHORT, "gsi-by-parameters", "Similarity index of parameter groups", _caption, _draw
    )


def beside_true(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield the indices of cohort and all clients, and the baseline, for the first methods with one of the latter."""
    number = 0
    for group in groups:
        names = parameters.names(group, BASELINE) or parameters.names(group, TRUE)
        found = {name: lines for name in names[:MOST_PANELS] if (lines := _lines(group, name)).keys() - {COHORT}}
        if not found or number == parameters.SHOWN_GROUPS:
            continue
        number += 1
        cut = f" The first {MOST_PANELS} of {len(names)} parameter groups." if len(names) > MOST_PANELS else ""
        yield Figure(
            f"gsi-baseline-{number}",
            f"Similarity index, its baseline, and that of all clients: {group.label}",
            f"A baseline estimates the index that all clients together would have.{cut}",
            _table(group, found),
            tuple(Panel(name, partial(_beside, lines)) for name, lines in found.items()),
        )


def _caption(group: Group) -> str:
    return "1 where all updates agree, larger the less they do; mean over trials."


def _draw(group: Group, found: Values, axes: Axes) -> None:
    parameters.draw(found, LABEL, axes)


def _lines(group: Group, name: str) -> dict[str, Series]:
    found = {prefix: group.series(parameters.column(prefix, name)) for prefix in LINES}
    return {
        prefix: series.at(curves.drawn_points(len(series.rounds)))
        for prefix, series in found.items()
        if series is not None
    }


def _table(group: Group, found: Mapping[str, Mapping[str, Series]]) -> pa.Table:
    every = [(name, prefix, series) for name, lines in found.items() for prefix, series in lines.items()]
    return pa.table(
        {
            "group": [group.label for *_, series in every for _ in series.rounds],
            "parameters": [name for name, _, series in every for _ in series.rounds],
            "of": [prefix for _, prefix, series in every for _ in series.rounds],
            "round": np.concatenate([series.rounds for *_, series in every]),
            "mean": np.concatenate([series.mean for *_, series in every]),
            "std": pa.array(np.concatenate([series.deviation for *_, series in every]), from_pandas=True),
        }
    )


def _beside(lines: Mapping[str, Series], axes: Axes) -> None:
    # What varies most is grey, so that it hides no other line.
    looks = {COHORT: nth(2)._replace(colour=GREY), BASELINE: nth(1), TRUE: nth(0)}
    for prefix, series in lines.items():
        look = looks[prefix]
        axes.plot(series.rounds, series.mean, **look.line(len(series.rounds), LINES[prefix]))
        reference_marks.band(axes, look, series.rounds, series)
    ticks.fitting_scale(axes, np.concatenate([series.mean for series in lines.values()]))
    axes.set_xlabel("finished rounds")
    axes.set_ylabel(LABEL)
