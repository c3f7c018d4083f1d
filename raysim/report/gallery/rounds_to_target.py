"""Draws rounds to a target accuracy against cohort size, and the speed-up beside a linear one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes, target
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.target import Target, TargetPoint
from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DESCRIBED_LANES = 3
"""Number of methods whose speed-up the caption states."""


def make(groups: Sequence[Group], aim: float | None) -> Iterator[Figure]:
    """Yield two figures if groups differ in the cohort's size and accuracies were evaluated.

    Args:
        groups: of the report.
        aim: an accuracy from 0 to 1; None takes a share of the best.
    """
    found = target.find(groups, aim, target.by_rounds)
    if found is None:
        return
    data = found.table("rounds", "speed_up", lambda first, mean: first / mean)
    yield Figure(
        "rounds-to-target",
        "Rounds to the target accuracy against cohort size",
        f"{found.caption} Dashed: as many times fewer rounds as there are more clients.",
        data,
        lambda axes: _draw(axes, found, is_speed_up=False),
    )
    yield Figure(
        "speed-up",
        "Speed-up by larger cohorts",
        f"{found.caption} {_verdict(found)} Dashed: a linear speed-up.",
        data,
        lambda axes: _draw(axes, found, is_speed_up=True),
    )


def _speed_up(point: TargetPoint) -> float:
    assert point.mean is not None
    assert point.first is not None
    return point.first / point.mean


def _verdict(found: Target) -> str:
    """Return the speed-up of each lane's largest cohort, as text."""
    sentences = []
    for lane in found.lanes[:DESCRIBED_LANES]:
        ends = [point for point in found.met if point.lane is lane]
        if len(ends) > 1:
            first, last = ends[0], ends[-1]
            sentences.append(
                f"{lane.label}: {last.size / first.size:.3g} times the clients ({first.size:g} to {last.size:g}) are a "
                f"speed-up of {_speed_up(last):.2g}."
            )
    return " ".join(sentences)


def _draw(axes: Axes, found: Target, is_speed_up: bool) -> None:
    for lane in found.lanes:
        points = [point for point in found.met if point.lane is lane]
        sizes = [point.size for point in points]
        values = [_speed_up(point) if is_speed_up else point.mean or 0.0 for point in points]
        if not points:
            continue
        ideal = [size / sizes[0] if is_speed_up else values[0] * sizes[0] / size for size in sizes]
        ticks.dashed(axes, sizes, ideal)
        lanes.draw(axes, lane, sizes, values, () if is_speed_up else [point.deviation for point in points])
    lanes.frame(axes, found.lanes)
    axes.set_yscale("log")
    axes.set_ylabel("speed-up over the smallest" if is_speed_up else "rounds")
    ticks.plain_logarithm(axes)
