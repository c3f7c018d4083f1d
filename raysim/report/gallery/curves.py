"""Draws a recorded figure against rounds, examples or time, a line per group with a band of one deviation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.arrays import Float64s, Int64s
from raysim.report.column_names import is_share, spoken
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import reference_marks
from raysim.report.gallery.figure import Figure, Kind, Panel
from raysim.report.groups import Group
from raysim.report.series import MeanCourse, Series, thin_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MAX_POINTS = 300
"""Points of one line. Longer lines are thinned at even distances; the first and last points stay."""
MAX_POINTS_IN_ALL = 6_000
"""Points of all lines of a figure, so that a page of many runs stays small; a line keeps at least MIN_POINTS."""
MIN_POINTS = 50


class Against(NamedTuple):
    """The quantity on the x axis: finished rounds, or columns of the records, added and cumulated over rounds.

    `column`: how it is called in the figure's data. `of`: the columns that are added; absent, it is a column itself.
    """

    name: str
    label: str
    column: str | None = None
    cumulated: bool = False
    of: tuple[str, ...] = ()

    def values(self, group: Group) -> MeanCourse | None:
        """Return its values of a group, by round; None if a column is missing."""
        assert self.column is not None
        first, *others = [group.rising(column, self.cumulated) for column in self.of or (self.column,)]
        if first is None or None in others:
            return None
        return first._replace(values=np.sum([part.values for part in (first, *others) if part is not None], axis=0))


ROUNDS = Against("rounds", "finished rounds")
EXAMPLES = Against("examples", "training examples processed", "examples_so_far")
BYTES = Against("bytes", "bytes transferred, down and up", "bytes", True, ("bytes_down", "bytes_up"))
SIMULATED_TIME = Against("simulated_time", "simulated time", "simulated_time_s", True)
WALL_TIME = Against("wall_time", "wall time", "wall_time_s", True)
EPSILON = Against("epsilon", "epsilon", "epsilon")
TIMES = (SIMULATED_TIME, WALL_TIME)


class GroupCurve(NamedTuple):
    """One group's curve: `x` of the shape of `y.mean`."""

    group: Group
    x: Float64s
    y: Series


def lines(
    groups: Sequence[Group], column: str, against: Against = ROUNDS, best_so_far: bool = False
) -> list[GroupCurve]:
    """Return the curves of the groups that have both figures, thinned; `best_so_far`: see `over_trials`."""
    found = []
    for group in groups:
        y = group.series(column, best_so_far=best_so_far)
        if y is None:
            continue
        if against.column is None:
            found.append(GroupCurve(group, y.rounds.astype(np.float64), y))
        elif (x := against.values(group)) is not None:
            known = np.flatnonzero(np.isin(y.rounds, x.rounds))
            y = y.at(known)
            found.append(GroupCurve(group, x.values[np.searchsorted(x.rounds, y.rounds)], y))
    rows = [drawn_points(len(line.x), len(found)) for line in found]
    return [GroupCurve(line.group, line.x[kept], line.y.at(kept)) for line, kept in zip(found, rows, strict=True)]


def drawn_points(points: int, num_lines: int = 1) -> Int64s:
    """Return the indices of a line's points to draw, in a figure of `num_lines` lines."""
    return thin_out(points, max(MIN_POINTS, min(MAX_POINTS, MAX_POINTS_IN_ALL // max(1, num_lines))))


def figure(
    name: str,
    title: str,
    caption: str,
    found: Sequence[GroupCurve],
    column: str,
    against: Against = ROUNDS,
    label: str = "",
) -> Figure:
    """Return the figure of these lines; `column` chooses the format of values, and the label of y if there is none."""
    return Figure(name, title, caption, table(found, against), lambda axes: draw(axes, found, column, against, label))


def table(found: Sequence[GroupCurve], against: Against = ROUNDS) -> pa.Table:
    """Return the lines' points: group, round, x, mean, deviation and trials."""
    columns = {
        "group": pa.array([line.group.label for line in found for _ in line.x], pa.string()),
        "round": np.concatenate([line.y.rounds for line in found]),
        "mean": np.concatenate([line.y.mean for line in found]),
        "std": pa.array(np.concatenate([line.y.deviation for line in found]), from_pandas=True),
        "trials": np.concatenate([line.y.trials for line in found]),
    }
    if against.column is not None:
        columns[against.column] = np.concatenate([line.x for line in found])
    return pa.table(columns)


def draw(axes: Axes, found: Sequence[GroupCurve], column: str, against: Against = ROUNDS, y_label: str = "") -> None:
    """Draw lines and bands; unnamed groups lie behind the others."""
    per_unit, label = 1.0, against.label
    if against in TIMES:
        per_unit, unit = ticks.time_unit(max(float(line.x[-1]) for line in found))
        label = f"{label}, {unit}"
    for line in sorted(found, key=lambda line: line.group.look.is_named):
        look, x, y = line.group.look, line.x / per_unit, line.y
        axes.plot(x, y.mean, **look.line(len(x), line.group.legend))
        reference_marks.band(axes, look, x, y)
    axes.set_xlabel(label)
    if label == ROUNDS.label:
        ticks.rounds(axes)
    axes.set_ylabel(y_label or spoken(column))
    if is_share(column):
        ticks.shares(axes)
    else:
        ticks.fitting_scale(axes, np.concatenate([line.y.mean for line in found]))
    if against in (EXAMPLES, BYTES):
        ticks.counts(axes)


def beside(
    name: str, title: str, caption: str, label: str, found: Mapping[str, tuple[str, Sequence[GroupCurve]]]
) -> Figure:
    """Return a figure of several columns in panels on the same axes, `label`: title -> (column, its lines)."""
    tables = [
        table(lines).append_column("of", pa.array([column] * sum(len(line.x) for line in lines), pa.string()))
        for column, lines in found.values()
    ]
    panels = tuple(Panel(heading, partial(_panel, column, label, lines)) for heading, (column, lines) in found.items())
    return Figure(name, title, caption, pa.concat_tables(tables), panels, shares_x=True)


def _panel(column: str, label: str, found: Sequence[GroupCurve], axes: Axes) -> None:
    draw(axes, found, column, y_label=label)


def by_round(section: str, column: str, title: str, caption: str) -> Kind:
    """Return the kind of figure that draws one column of the records against rounds."""
    return Kind(section, title, column, partial(_figures_by_round, column, title, caption))


def _figures_by_round(column: str, title: str, caption: str, groups: Sequence[Group]) -> Iterator[Figure]:
    found = lines(groups, column)
    if found:
        yield figure(column, title, caption, found, column, label=title[0].lower() + title[1:])
