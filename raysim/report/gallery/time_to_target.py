"""Draws simulated time to a target accuracy against cohort size, relative to the smallest cohort's.

Source: Charles et al. (2021), appendix B.5, figures 25 to 28, whose smallest cohort is M = 10.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes, target
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.target import Target
from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def make(groups: Sequence[Group], aim: float | None) -> Iterator[Figure]:
    """Yield one figure if groups with simulated time differ in the cohort's size, and accuracies were evaluated.

    Args:
        groups: of the report.
        aim: an accuracy from 0 to 1; None takes a share of the best.
    """
    found = target.find(groups, aim, target.by_simulated_time)
    if found is None:
        return
    yield Figure(
        "time-to-target",
        "Simulated time to the target accuracy, relative to the smallest cohort",
        f"{found.caption} Below 1 a larger cohort arrives before the smallest; above 1 waiting for its slowest clients "
        f"costs more time than its fewer rounds save.",
        found.table("seconds", "relative", lambda first, mean: mean / first),
        lambda axes: _draw(axes, found),
    )


def _draw(axes: Axes, found: Target) -> None:
    for lane in found.lanes:
        points = [point for point in found.met if point.lane is lane]
        times = [(point.mean or 0.0) / (point.first or 1.0) for point in points]
        spread = [None if point.deviation is None else point.deviation / (point.first or 1.0) for point in points]
        if points:
            lanes.draw(axes, lane, [point.size for point in points], times, spread)
    sizes = [size for lane in found.lanes for size in lane.sizes]
    ticks.dashed(axes, [min(sizes), max(sizes)], [1.0, 1.0])
    lanes.frame(axes, found.lanes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time over that of the smallest")
