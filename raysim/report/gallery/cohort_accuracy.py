"""Draws final accuracy, or loss, against cohort size, a line per method."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.report.figures import is_share, spoken
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("cohort_size", pa.float64()),
        ("mean", pa.float64()),
        ("std", pa.float64()),
        ("trials", pa.int64()),
    ]
)


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield one figure if groups differ in the cohort's size."""
    column, found = headline(groups), lanes.lanes(groups)
    rows = []
    for lane in found:
        for size, group in zip(lane.sizes, lane.groups, strict=True):
            if finals := group.finals(column):
                deviation = statistics.stdev(finals) if len(finals) > 1 else None
                rows.append((lane.label, size, statistics.fmean(finals), deviation, len(finals)))
    if not rows:
        return
    data = pa.table([list(part) for part in zip(*rows, strict=True)], schema=SCHEMA)

    def draw(axes: Axes) -> None:
        for lane in found:
            points = [row for row in rows if row[0] == lane.label]
            lanes.draw(axes, lane, [p[1] for p in points], [p[2] for p in points], [p[3] for p in points])
        lanes.frame(axes, found)
        axes.set_ylabel(spoken(column))
        if is_share(column):
            ticks.shares(axes)

    yield Figure(
        "cohort-size",
        f"{spoken(column).capitalize()} against cohort size",
        "The newest value of each run, mean and one standard deviation over trials. A flat line means that "
        "larger cohorts no longer help after the same number of rounds.",
        data,
        draw,
    )
