"""Draws final accuracy, or loss, of training and of evaluation against cohort size, or against another key.

Source: Charles et al. (2021), figures 3, 8, 10, 18, 19, 38 and 41; the first three have the cohort as a share of the
training clients.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from raysim.report.column_names import is_share, spoken
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.gallery.lanes import COHORT_SIZE, Along, Lane
from raysim.report.gallery.train_test import training_column
from raysim.report.groups import Group, headline
from raysim.report.number_formats import share

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Final(NamedTuple):
    """`part`: the share of the training clients that a cohort of this size is; None along other keys."""

    lane: Lane
    size: float
    part: float | None
    column: str
    finals: Sequence[float]

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.finals) if len(self.finals) > 1 else None


def by_cohort_size(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure if groups differ in the cohort's size, and one of shares if the number of clients is known."""
    along = lanes.lanes(groups)
    if along is None or not (points := _points(along, groups)):
        return
    caption = (
        "The newest value of each run, mean and one standard deviation over trials. A flat line means that larger "
        "cohorts no longer help after the same number of rounds."
    )
    title = f"{_spoken(points)} against cohort size"
    yield Figure("cohort-size", title, caption, _table(along, points), _panels(along, points))
    parts = {point.part: share(point.part) for point in points if point.part is not None}
    if len(parts) > 1:
        yield Figure(
            "cohort-share",
            f"{title}, as a share of the training clients",
            caption,
            _table(along, points),
            _panels(along, points, dict(sorted(parts.items()))),
        )


def by_other_keys(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for each other key in whose values groups differ, if these have an order."""
    for along in lanes.every(groups):
        if along.key != COHORT_SIZE and (points := _points(along, groups)):
            yield Figure(
                f"final{along.suffix}",
                f"{_spoken(points)} against {along.key}",
                "The newest value of each run, mean and one standard deviation over trials.",
                _table(along, points),
                _panels(along, points),
            )


def _points(along: Along, groups: Sequence[Group]) -> list[_Final]:
    """Return the points of training, then those of the evaluation; one of both may be missing."""
    column = headline(groups)
    training = training_column(groups, column)
    return [
        _Final(lane, size, _part(group, size) if along.key == COHORT_SIZE else None, one, finals)
        for one in dict.fromkeys((training, column))
        for lane in along.lanes
        for size, group in zip(lane.sizes, lane.groups, strict=True)
        if (finals := group.finals(one))
    ]


def _part(group: Group, size: float) -> float | None:
    """Return the share of the training clients that a cohort is; None if trials differ, or it is not known."""
    first, *others = group.runs
    if first.training_clients is None or any(run.training_clients != first.training_clients for run in others):
        return None
    return size / first.training_clients


def _columns(points: Sequence[_Final]) -> list[str]:
    return list(dict.fromkeys(point.column for point in points))


def _spoken(points: Sequence[_Final]) -> str:
    return " and ".join(map(spoken_of, _columns(points))).capitalize()


def spoken_of(column: str) -> str:
    """Return a column's name; that of a cohort says what it is of."""
    return spoken(column) if "/" in column else f"training {column}"


def _table(along: Along, points: Sequence[_Final]) -> pa.Table:
    parts = [point.part for point in points]
    return pa.table(
        {
            "group": [point.lane.label for point in points],
            along.key.replace(".", "_"): [
                point.size if along.is_logarithmic else along.ticks[point.size] for point in points
            ],
            **({"share_of_clients": pa.array(parts, pa.float64())} if along.key == COHORT_SIZE else {}),
            "of": [point.column for point in points],
            "mean": [statistics.fmean(point.finals) for point in points],
            "std": pa.array([point.deviation for point in points], pa.float64()),
            "trials": [len(point.finals) for point in points],
        }
    )


def _panels(along: Along, points: Sequence[_Final], parts: Mapping[float, str] | None = None) -> tuple[Panel, ...]:
    return tuple(
        Panel(spoken_of(column), partial(_draw, along, [p for p in points if p.column == column], parts))
        for column in _columns(points)
    )


def _draw(along: Along, points: Sequence[_Final], parts: Mapping[float, str] | None, axes: Axes) -> None:
    for lane in along.lanes:
        shown = [p for p in points if p.lane is lane and (parts is None or p.part is not None)]
        if shown:
            places = [p.size if parts is None else p.part or 0.0 for p in shown]
            lanes.draw(axes, lane, places, [statistics.fmean(p.finals) for p in shown], [p.deviation for p in shown])
    if parts is None:
        along.frame(axes)
    else:
        ticks.places(axes, parts)
        axes.set_xlabel("share of training clients")
    column = points[0].column
    axes.set_ylabel(column.rpartition("/")[2])
    if is_share(column):
        ticks.shares(axes)
