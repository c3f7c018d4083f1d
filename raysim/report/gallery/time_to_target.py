"""Draws simulated time to target accuracies against cohort size, relative to the smallest cohort that reaches them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from raysim.report.gallery import lanes, reference_marks, run_cost, target
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.target import Target
from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def make(groups: Sequence[Group], targets: Sequence[float]) -> Iterator[Figure]:
    """Yield a figure per target if groups with simulated time differ in the cohort's size, and have accuracies.

    Args:
        groups: of the report.
        targets: accuracies from 0 to 1; none: a share of the best.
    """
    aims, along = target.aims(groups, targets), lanes.lanes(groups)
    if aims is None or along is None:
        return
    for found in target.find(along, aims, run_cost.by_simulated_time):
        several = len(aims.targets) > 1
        yield Figure(
            "time-to-target" + (f"-{found.target:g}" if several else ""),
            f"Simulated time to {aims.written(found.target)}, relative to the smallest cohort that reaches it",
            f"{'' if several else aims.caption + ' '}Below 1 a larger cohort arrives before that one; above 1 "
            f"waiting for its slowest clients costs more time than its fewer rounds save.{found.missed}",
            found.table("seconds", "relative", lambda first, mean: mean / first),
            partial(_draw, found),
        )


def _draw(found: Target, axes: Axes) -> None:
    for lane in found.along.lanes:
        if met := found.met(lane):
            spread = [None if (std := point.reach.deviation) is None else std / first for point, _, first in met]
            lanes.draw(
                axes, lane, [point.size for point, _, _ in met], [mean / first for _, mean, first in met], spread
            )
    reference_marks.dashed(axes, [min(found.along.ticks), max(found.along.ticks)], [1.0, 1.0])
    found.along.frame(axes)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("time over that of the smallest to arrive")
