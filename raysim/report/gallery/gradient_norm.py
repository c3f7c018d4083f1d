"""Draws the pseudo-gradient's norm against cohort size, beside the prediction for unrelated updates.

The mean of M updates of one size and random directions has a norm proportional to 1 / sqrt(M). The prediction begins at
the smallest cohort M_0: |g|(M_0) sqrt(M_0 / M). Source: Charles et al. (2021), section 3.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.report.figures import spoken
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMN = "pseudo_gradient_norm"


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield one figure if groups differ in the cohort's size."""
    along = lanes.lanes(groups)
    if along is None:
        return
    rows = []
    for lane in along.lanes:
        first: tuple[float, float] | None = None
        for size, group in zip(lane.sizes, lane.groups, strict=True):
            series = group.series(COLUMN)
            if series is None:
                continue
            norm = statistics.fmean(series.mean.tolist())
            first = first or (size, norm)
            rows.append((lane.label, size, norm, first[1] * math.sqrt(first[0] / size)))
    if not rows:
        return
    names = ("group", "cohort_size", "mean_norm", "prediction")
    data = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))

    def draw(axes: Axes) -> None:
        for lane in along.lanes:
            points = [row[1:] for row in rows if row[0] == lane.label]
            if not points:
                continue
            sizes, norms, predicted = zip(*points, strict=True)
            ticks.dashed(axes, sizes, predicted)
            lanes.draw(axes, lane, sizes, norms)
        along.frame(axes)
        axes.set_yscale("log")
        ticks.plain_logarithm(axes)
        axes.set_ylabel(spoken(COLUMN))

    yield Figure(
        "pseudo-gradient-norm-by-cohort-size",
        "Pseudo-gradient norm against cohort size",
        "Mean over all rounds and trials. Dashed: the inverse-square-root prediction, from the smallest cohort on; "
        "norms that follow it are those of updates that hardly agree.",
        data,
        draw,
    )
