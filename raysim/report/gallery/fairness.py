"""Draws the mean accuracy of clients against that of the worst tenth of them, along the parameter of a fair objective.

Source: Li et al. (2020), "Fair resource allocation in federated learning", table 1: average, and worst 10 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.arrays import Float64s
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes
from raysim.report.gallery.client_distribution import scored, splits
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.lanes import Along, Lane
from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KEYS = "server.fairness."
PARTS = 10
"""The worst of so many parts of the clients."""


class _Point(NamedTuple):
    """A group at its parameter: a trial's means over clients, of all and of the worst."""

    lane: Lane
    size: float
    means: Sequence[float]
    worst: Sequence[float]


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for each parameter of fairness in which groups differ, and each split with several clients."""
    for along in lanes.every(groups):
        for split in splits(groups) if along.key.startswith(KEYS) else ():
            points = [
                point
                for lane in along.lanes
                for size, group in zip(lane.sizes, lane.groups, strict=True)
                if (point := _point(lane, size, group, split)) is not None
            ]
            if len(points) < 2:
                continue
            data = pa.table(
                {
                    "group": [point.lane.label for point in points],
                    along.key.replace(".", "_"): [along.ticks[point.size] for point in points],
                    "worst_tenth": [statistics.fmean(point.worst) for point in points],
                    "worst_tenth_std": pa.array([lanes.deviation(point.worst) for point in points], pa.float64()),
                    "mean": [statistics.fmean(point.means) for point in points],
                    "std": pa.array([lanes.deviation(point.means) for point in points], pa.float64()),
                    "trials": [len(point.means) for point in points],
                }
            )
            yield Figure(
                f"fairness-{split}{along.suffix}".replace("/", "-"),
                f"Mean accuracy of {split} clients against that of the worst tenth, along {along.key}",
                "A client counts once; newest evaluations, mean and one standard deviation over trials. Numbers are "
                "values of the key. Further to the right is fairer, further up is better on average.",
                data,
                partial(_draw, along, points),
            )


def worst_tenth(accuracies: Float64s) -> float:
    """Return the mean of the smallest tenth, rounded up to whole clients.

    >>> worst_tenth(np.array([0.5, 0.2, 0.9, 0.4, 1, 1, 1, 1, 1, 1, 1]))
    0.30000000000000004
    """
    # In whole numbers: 0.1 times 70 is a little more than 7.
    return float(np.sort(accuracies)[: -(-len(accuracies) // PARTS)].mean())


def _point(lane: Lane, size: float, group: Group, split: str) -> _Point | None:
    found = [scored(run.clients, split)["accuracy"].to_numpy() for run in group.runs]
    several = [accuracies for accuracies in found if len(accuracies) > 1]
    if not several:
        return None
    means = [float(accuracies.mean()) for accuracies in several]
    return _Point(lane, size, means, [worst_tenth(accuracies) for accuracies in several])


def _trials(points: Sequence[_Point]) -> tuple[list[Sequence[float]], list[Sequence[float]]]:
    return [point.worst for point in points], [point.means for point in points]


def _draw(along: Along, points: Sequence[_Point], axes: Axes) -> None:
    for lane in along.lanes:
        shown = [point for point in points if point.lane is lane]
        if not shown:
            continue
        worst, means = ([statistics.fmean(trials) for trials in each] for each in _trials(shown))
        along_x, along_y = ([lanes.deviation(trials) for trials in each] for each in _trials(shown))
        lanes.draw(axes, lane, worst, means, along_y, along_x)
        for point, x, y in zip(shown, worst, means, strict=True) if lane.look.is_named else ():
            axes.annotate(
                along.ticks[point.size],
                (x, y),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize="small",
            )
    axes.set_xlabel("mean accuracy of the worst tenth of clients")
    axes.set_ylabel("mean accuracy of clients")
    axes.margins(0.12)
    ticks.shares(axes)
    ticks.shares(axes, "x")
