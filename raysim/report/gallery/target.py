"""Finds a target accuracy and the cost to reach it, by cohort size, for rounds and times to target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raysim.report import figures
from raysim.report.gallery import lanes
from raysim.report.gallery.lanes import Lane
from raysim.report.groups import Group, headline
from raysim.report.runs import Run
from raysim.report.series import Floats, crossing, over_trials

DEFAULT_SHARE = 0.95
"""The default target is this share of the best group's mean final accuracy."""


class Spent(NamedTuple):
    """The cost and the accuracy of a run at each of its evaluations; arrays of one shape."""

    spent: Floats
    accuracies: Floats


class TargetPoint(NamedTuple):
    """`mean` and `deviation` over the trials that reached the target, `reached` of `trials`; None if none did.

    `first`: the mean of the lane's smallest cohort that reached it.
    """

    lane: Lane
    size: float
    mean: float | None
    deviation: float | None
    reached: int
    trials: int
    first: float | None


class Target(NamedTuple):
    """`caption`: states the target and the groups that did not reach it."""

    lanes: Sequence[Lane]
    points: Sequence[TargetPoint]
    caption: str

    @property
    def met(self) -> list[TargetPoint]:
        """The points that reached the target."""
        return [point for point in self.points if point.mean is not None]

    def table(self, amount: str, ratio: str, of: Callable[[float, float], float]) -> pa.Table:
        """Return one row per point: `amount` is the mean, `ratio` is of(first, mean)."""
        ratios = [
            None if point.mean is None or point.first is None else of(point.first, point.mean) for point in self.points
        ]
        return pa.table(
            {
                "group": [point.lane.label for point in self.points],
                "cohort_size": [point.size for point in self.points],
                amount: pa.array([point.mean for point in self.points], pa.float64()),
                "std": pa.array([point.deviation for point in self.points], pa.float64()),
                "reached": [point.reached for point in self.points],
                "trials": [point.trials for point in self.points],
                ratio: pa.array(ratios, pa.float64()),
            }
        )


def find(groups: Sequence[Group], target: float | None, spent: Callable[[Run, str], Spent | None]) -> Target | None:
    """Return the target and its points; None if groups do not differ in the cohort's size, or none reached it.

    Args:
        groups: of the report.
        target: an accuracy from 0 to 1; None takes DEFAULT_SHARE of the best.
        spent: returns the cost of a run at its evaluations of a column; None if it is not known.
    """
    column, found = headline(groups), lanes.lanes(groups)
    finals = [values for lane in found for group in lane.groups if (values := group.finals(column))]
    if not finals or not column.endswith("accuracy"):
        return None
    aim = DEFAULT_SHARE * max(map(statistics.fmean, finals)) if target is None else target
    points = [point for lane in found for point in _points(lane, column, aim, spent)]
    by = "given" if target is not None else f"{figures.share(DEFAULT_SHARE)} of the best; --target takes another"
    missed = ", ".join(f"{point.lane.label} with {point.size:g}" for point in points if point.mean is None)
    caption = f"The target is {figures.share(aim)} ({by})." + (f" Not reached by: {missed}." if missed else "")
    found_target = Target(found, points, caption)
    return found_target if found_target.met else None


def by_rounds(run: Run, column: str) -> Spent | None:
    """Return the cost as finished rounds."""
    series = over_trials([run.rounds], column)
    return None if series is None else Spent(series.rounds.astype(np.float64), series.mean)


def by_simulated_time(run: Run, column: str) -> Spent | None:
    """Return the cost as seconds of simulated time."""
    series, time = over_trials([run.rounds], column), over_trials([run.rounds], "simulated_time_s", cumulated=True)
    if series is None or time is None:
        return None
    return Spent(time.mean[np.searchsorted(time.rounds, series.rounds)], series.mean)


def _points(lane: Lane, column: str, target: float, spent: Callable[[Run, str], Spent | None]) -> Iterator[TargetPoint]:
    """Yield the lane's points, by rising size."""
    first: float | None = None
    for size, group in zip(lane.sizes, lane.groups, strict=True):
        known = [found for run in group.runs if (found := spent(run, column)) is not None]
        crossings = [crossing(one.spent, one.accuracies, target) for one in known]
        reached = [value for value in crossings if value is not None]
        mean = statistics.fmean(reached) if reached else None
        deviation = statistics.stdev(reached) if len(reached) > 1 else None
        first = mean if first is None else first
        yield TargetPoint(lane, size, mean, deviation, len(reached), len(group.runs), first)
