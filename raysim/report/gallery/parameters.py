"""Draws a figure that every parameter group has, against rounds: a picture per method, a line per parameter group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raysim.report.gallery import axes as ticks
from raysim.report.gallery import reference_marks
from raysim.report.gallery.curves import MAX_POINTS
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group
from raysim.report.looks import looks
from raysim.report.series import Series, thin_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_GROUPS = 12
"""Number of groups of runs with a separate figure."""
WHOLE = "whole model"

Values = dict[str, Series]
"""Parameter group -> its figure over trials."""


def column(prefix: str, name: str) -> str:
    """Return the column of a parameter group; the whole model's has no end."""
    return prefix if name == WHOLE else f"{prefix}/{name}"


def names(group: Group, prefix: str) -> list[str]:
    """Return the parameter groups that have the figure, in the records' order; the whole model only if alone."""
    columns = group.runs[0].rounds.column_names
    parts = [name.removeprefix(f"{prefix}/") for name in columns if name.startswith(f"{prefix}/")]
    return parts or ([WHOLE] if prefix in columns else [])


def values(group: Group, prefix: str) -> Values:
    """Return the lines of a group of runs; parameter groups with one course share a line."""
    found: Values = {}
    for name in names(group, prefix):
        series = group.series(column(prefix, name))
        if series is None:
            continue
        kept = series.at(thin_out(len(series.rounds), MAX_POINTS))
        if not any(np.array_equal(drawn.mean, kept.mean) for drawn in found.values()):
            found[name] = kept
    return found


def figures(
    groups: Sequence[Group],
    prefix: str,
    name: str,
    title: str,
    caption: Callable[[Group], str],
    draw: Callable[[Group, Values, Axes], None],
) -> Iterator[Figure]:
    """Yield a figure for each of the first methods that have such columns, with `caption` and `draw` of the method."""
    number = 0
    for group in groups:
        if number == SHOWN_GROUPS:
            return
        if not (found := values(group, prefix)):
            continue
        number += 1
        data = pa.table(
            {
                "group": [group.label for series in found.values() for _ in series.rounds],
                "parameters": [parameters for parameters, series in found.items() for _ in series.rounds],
                "round": np.concatenate([series.rounds for series in found.values()]),
                "mean": np.concatenate([series.mean for series in found.values()]),
                "std": pa.array(np.concatenate([series.deviation for series in found.values()]), from_pandas=True),
            }
        )
        yield Figure(f"{name}-{number}", f"{title}: {group.label}", caption(group), data, partial(draw, group, found))


def draw(found: Values, label: str, axes: Axes, middle: float = 1.0) -> None:
    """Draw the lines; of many, those that come farthest from `middle` are named."""
    far = [float(np.abs(series.mean - middle).max()) for series in found.values()]
    pairs = zip(looks(far), found.items(), strict=True)
    for look, (name, series) in sorted(pairs, key=lambda pair: pair[0].is_named):
        axes.plot(series.rounds, series.mean, **look.line(len(series.rounds), name))
        reference_marks.band(axes, look, series.rounds, series)
    ticks.fitting_scale(axes, np.concatenate([series.mean for series in found.values()]))
    axes.set_xlabel("finished rounds")
    axes.set_ylabel(label)
