"""Draws simulated time against the accuracy it reaches, relative to the smallest cohort's: a line per cohort size.

Source: Charles et al. (2021), appendix B.5, figures 25 to 28, with M = 10 as the smallest cohort, a panel per lambda.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.arrays import Float64s
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes, run_cost, target
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.gallery.lanes import Lane
from raysim.report.groups import Group
from raysim.report.looks import GREY, looks
from raysim.report.series import crossing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TARGETS = 60
"""Accuracies at even distances, from none to the best."""
MOST_PANELS = 6


class _Ratio(NamedTuple):
    """`ratios` belongs to the rising `targets`; NaN where not every trial of both cohorts reached one."""

    lane: Lane
    size: float
    targets: Float64s
    ratios: Float64s


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield one figure if groups with simulated time differ in the cohort's size, and accuracies were evaluated."""
    aims, along = target.aims(groups, ()), lanes.lanes(groups)
    if aims is None or along is None:
        return
    best = max(max(group.finals(aims.column), default=0.0) for lane in along.lanes for group in lane.groups)
    targets = np.linspace(0.0, best, TARGETS + 1)[1:]
    shown = along.lanes[:MOST_PANELS]
    found = [ratio for lane in shown for ratio in _ratios(lane, aims.column, targets)]
    if not found:
        return
    known = [(ratio, np.flatnonzero(np.isfinite(ratio.ratios))) for ratio in found]
    data = pa.table(
        {
            "group": [ratio.lane.label for ratio, rows in known for _ in rows],
            "cohort_size": [ratio.size for ratio, rows in known for _ in rows],
            "over_cohort_size": [ratio.lane.sizes[0] for ratio, rows in known for _ in rows],
            "target": np.concatenate([ratio.targets[rows] for ratio, rows in known]),
            "relative": np.concatenate([ratio.ratios[rows] for ratio, rows in known]),
        }
    )
    sizes, smallest = list(along.ticks), list(dict.fromkeys(ratio.lane.sizes[0] for ratio in found))
    which = (
        f"The smallest cohort has {smallest[0]:g} clients."
        if len(smallest) == 1
        else "Each panel has a smallest cohort of its own, whose size is on its axis."
    )
    yield Figure(
        "time-ratio",
        "Simulated time to an accuracy, relative to the smallest cohort's",
        f"{which} Below 1 a larger cohort arrives before it. Mean over trials; a line ends where a trial of it, or of "
        "the smallest cohort, arrives no more.",
        data,
        tuple(
            Panel(lane.label, partial(_draw, of_lane, sizes))
            for lane in shown
            if (of_lane := [one for one in found if one.lane is lane])
        ),
    )


def _ratios(lane: Lane, column: str, targets: Float64s) -> Iterator[_Ratio]:
    """Yield the ratios of the lane's larger cohorts, where something was reached."""
    times = [_times(group, column, targets) for group in lane.groups]
    for size, of_size in zip(lane.sizes[1:], times[1:], strict=True):
        ratios = of_size / times[0]
        if np.isfinite(ratios).any():
            yield _Ratio(lane, size, targets, ratios)


def _times(group: Group, column: str, targets: Float64s) -> Float64s:
    """Return the trials' mean time to each target; NaN where one does not reach it."""
    known = [run_cost.by_simulated_time(run, column) for run in group.runs]
    times = [[None if one is None else crossing(*one, aim) for aim in targets.tolist()] for one in known]
    means: Float64s = np.array(times, dtype=np.float64).mean(0)
    return means


def _draw(found: Sequence[_Ratio], sizes: Sequence[float], axes: Axes) -> None:
    # A size looks the same in all panels.
    look_of = dict(zip(sizes[1:], looks(sizes[1:]), strict=True))
    axes.axhline(1, linestyle=(0, (3, 2)), color=GREY, linewidth=1.2)
    for one in found:
        axes.plot(one.targets, one.ratios, **look_of[one.size].line(len(one.targets), f"M = {one.size:g}"))
    ticks.shares(axes, "x")
    # Not a limit: panels share the axis, and the next would not widen it.
    axes.axhline(0, linewidth=0)
    axes.set_xlabel("target accuracy")
    axes.set_ylabel(f"time over that of M = {found[0].lane.sizes[0]:g}")
