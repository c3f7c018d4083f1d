"""Rounds to a target accuracy against cohort size, and the speed-up, beside what a linear speed-up would be."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.report import figures
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.lanes import Lane
from raysim.report.groups import Group, headline
from raysim.report.series import Floats, Ints, over_trials

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULT_SHARE = 0.95
"""Without a target, it is this share of the best group's mean final accuracy."""
SAID_LANES = 3
"""Of so many methods the speed-up is said in words."""


class Point(NamedTuple):
    """`mean` and `deviation` over the trials that reached the target, `reached` of `trials`; None where none did."""

    lane: Lane
    size: float
    mean: float | None
    deviation: float | None
    reached: int
    trials: int
    speed_up: float | None


def crossing(rounds: Ints, accuracies: Floats, target: float) -> float | None:
    """Rounds until the running maximum of the accuracies is the target, linearly interpolated; None if it never is.

    Source: McMahan et al. (2017), section 3. A curve that begins above the target has met it in its first evaluation.
    """
    best = np.maximum.accumulate(accuracies)
    if not len(best) or best[-1] < target:
        return None
    after = int(np.argmax(best >= target))
    if after == 0:
        return float(rounds[0])
    part = (target - best[after - 1]) / (best[after] - best[after - 1])
    return float(rounds[after - 1] + part * (rounds[after] - rounds[after - 1]))


def make(groups: Sequence[Group], target: float | None) -> Iterator[Figure]:
    """Two figures, where groups differ in the cohort's size and accuracies were evaluated.

    Args:
        groups: of the report.
        target: an accuracy from 0 to 1; None takes DEFAULT_SHARE of the best.
    """
    column, found = headline(groups), lanes.lanes(groups)
    finals = [values for lane in found for group in lane.groups if (values := group.finals(column))]
    if not finals or not column.endswith("accuracy"):
        return
    aim = DEFAULT_SHARE * max(map(statistics.fmean, finals)) if target is None else target
    points = [point for lane in found for point in _points(lane, column, aim)]
    data = pa.table(
        {
            "group": [point.lane.label for point in points],
            "cohort_size": [point.size for point in points],
            "rounds": pa.array([point.mean for point in points], pa.float64()),
            "std": pa.array([point.deviation for point in points], pa.float64()),
            "reached": [point.reached for point in points],
            "trials": [point.trials for point in points],
            "speed_up": pa.array([point.speed_up for point in points], pa.float64()),
        }
    )
    by = "given" if target is not None else f"{figures.share(DEFAULT_SHARE)} of the best; --target takes another"
    met = [point for point in points if point.mean is not None]
    missed = ", ".join(f"{point.lane.label} with {point.size:g}" for point in points if point.mean is None)
    says = f"The target is {figures.share(aim)} ({by})."
    if missed:
        says += f" Not reached by: {missed}."
    if not met:
        return
    yield Figure(
        "rounds-to-target",
        "Rounds to the target accuracy against cohort size",
        f"{says} Dashed: as many times fewer rounds as there are more clients.",
        data,
        lambda axes: _draw(axes, found, met, is_speed_up=False),
    )
    yield Figure(
        "speed-up",
        "Speed-up by larger cohorts",
        f"{says} {_verdict(found, met)} Dashed: a linear speed-up.",
        data,
        lambda axes: _draw(axes, found, met, is_speed_up=True),
    )


def _points(lane: Lane, column: str, target: float) -> Iterator[Point]:
    """The lane's points; speed-ups are over its smallest cohort that reached the target."""
    first: float | None = None
    for size, group in zip(lane.sizes, lane.groups, strict=True):
        series = [found for run in group.runs if (found := over_trials([run.rounds], column)) is not None]
        crossings = [crossing(one.rounds, one.mean, target) for one in series]
        reached = [rounds for rounds in crossings if rounds is not None]
        mean = statistics.fmean(reached) if reached else None
        deviation = statistics.stdev(reached) if len(reached) > 1 else None
        first = mean if first is None else first
        speed_up = None if mean is None or first is None else first / mean
        yield Point(lane, size, mean, deviation, len(reached), len(group.runs), speed_up)


def _verdict(found: Sequence[Lane], met: Sequence[Point]) -> str:
    """What the largest cohort of a lane makes of its many clients."""
    said = []
    for lane in found[:SAID_LANES]:
        first, *_, last = ends if len(ends := [point for point in met if point.lane is lane]) > 1 else (None, None)
        if first is not None and last is not None and last.speed_up is not None:
            said.append(
                f"{lane.label}: {last.size / first.size:.3g} times the clients ({first.size:g} to {last.size:g}) are a "
                f"speed-up of {last.speed_up:.2g}."
            )
    return " ".join(said)


def _draw(axes: Axes, found: Sequence[Lane], met: Sequence[Point], is_speed_up: bool) -> None:
    for lane in found:
        points = [point for point in met if point.lane is lane]
        sizes = [point.size for point in points]
        values = [(point.speed_up if is_speed_up else point.mean) or 0.0 for point in points]
        if not points:
            continue
        ideal = [size / sizes[0] if is_speed_up else values[0] * sizes[0] / size for size in sizes]
        ticks.dashed(axes, sizes, ideal)
        lanes.draw(axes, lane, sizes, values, () if is_speed_up else [point.deviation for point in points])
    lanes.frame(axes, found)
    axes.set_yscale("log")
    axes.set_ylabel("speed-up over the smallest" if is_speed_up else "rounds")
    ticks.plain_logarithm(axes)
