"""Draws the share of trials with a catastrophic failure against cohort size.

Source: Charles et al. (2021), section 3.1: the training accuracy falls by half, or more, in a single round. Here it
must fall below the half, because one of 0 may stay there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.lanes import Along, Lane
from raysim.report.groups import Group
from raysim.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMN = "catastrophic_failure"


class _Share(NamedTuple):
    lane: Lane
    size: float
    failed: int
    trials: int

    @property
    def share(self) -> float:
        return self.failed / self.trials


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield one figure if groups differ in the cohort's size, and failures were looked for."""
    along = lanes.lanes(groups)
    if along is None:
        return
    points = []
    for lane in along.lanes:
        for size, group in zip(lane.sizes, lane.groups, strict=True):
            if known := [found for run in group.runs if (found := _failed(run)) is not None]:
                points.append(_Share(lane, size, sum(known), len(known)))
    if not points:
        return
    data = pa.table(
        {
            "group": [point.lane.label for point in points],
            "cohort_size": [point.size for point in points],
            "failed": [point.failed for point in points],
            "trials": [point.trials for point in points],
            "share": [point.share for point in points],
        }
    )
    failed, trials = sum(point.failed for point in points), sum(point.trials for point in points)
    yield Figure(
        "failed-trials",
        "Catastrophic failures against cohort size",
        f"The share of trials in which the cohort's training accuracy fell below half of the last round's: {failed} of "
        f"{trials} in all.",
        data,
        partial(_draw, along, points),
    )


def _failed(run: Run) -> bool | None:
    """Return whether a round of the run was a failure; None if that is not known of any round."""
    if COLUMN not in run.rounds.column_names:
        return None
    known = pc.drop_null(pc.cast(run.rounds[COLUMN], pa.bool_()))
    return bool(pc.any(known).as_py()) if len(known) else None


def _draw(along: Along, points: Sequence[_Share], axes: Axes) -> None:
    for lane in along.lanes:
        if shown := [point for point in points if point.lane is lane]:
            lanes.draw(axes, lane, [point.size for point in shown], [point.share for point in shown])
    along.frame(axes)
    axes.set_ylim(-0.03, 1.03)
    ticks.shares(axes)
    axes.set_ylabel("trials that failed")
