"""Draws the pseudo-gradient's norm against cohort size, beside the prediction for unrelated updates.

The mean of M updates of one size and random directions has a norm proportional to 1 / sqrt(M). The prediction begins at
the smallest cohort M_0: |g|(M_0) sqrt(M_0 / M). Source: Charles et al. (2021), section 3.

Round by round, as figure 6c, it begins at M_0 = 50 if there is such a cohort.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raysim.report.column_names import spoken
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import curves, lanes, reference_marks
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.groups import Group
from raysim.report.looks import looks
from raysim.report.series import Series, over_trials

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMN = "pseudo_gradient_norm"
REFERENCE = 50.0
SHOWN_LANES = 12


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
            each = [float(one.mean.mean()) for run in group.runs if (one := over_trials([run.rounds], COLUMN))]
            first = first or (size, norm)
            rows.append((lane.label, size, norm, lanes.deviation(each), first[1] * math.sqrt(first[0] / size)))
    if not rows:
        return
    labels, *numbers = zip(*rows, strict=True)
    names = ("cohort_size", "mean_norm", "std", "prediction")
    data = pa.table({"group": labels, **{k: pa.array(v, pa.float64()) for k, v in zip(names, numbers, strict=True)}})

    def draw(axes: Axes) -> None:
        for lane in along.lanes:
            points = [row[1:] for row in rows if row[0] == lane.label]
            if not points:
                continue
            sizes, norms, deviations, predicted = zip(*points, strict=True)
            reference_marks.dashed(axes, sizes, predicted)
            lanes.draw(axes, lane, sizes, norms, deviations)
        along.frame(axes)
        axes.set_yscale("log")
        ticks.plain_logarithm(axes)
        axes.set_ylabel(spoken(COLUMN))

    yield Figure(
        "pseudo-gradient-norm-by-cohort-size",
        "Pseudo-gradient norm against cohort size",
        "Mean over all rounds, and mean and one standard deviation over trials. Dashed: the inverse-square-root "
        "prediction, from the smallest cohort on; norms that follow it are those of updates that hardly agree.",
        data,
        draw,
    )


def predicted(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield the norms of every round beside those that one cohort's norms predict, for each of the first lanes."""
    along = lanes.lanes(groups)
    for number, lane in enumerate(along.lanes[:SHOWN_LANES] if along else ()):
        recorded = {
            size: series.at(curves.drawn_points(len(series.rounds), len(lane.sizes)))
            for size, group in zip(lane.sizes, lane.groups, strict=True)
            if (series := group.series(COLUMN)) is not None
        }
        if len(recorded) < 2:
            continue
        first = REFERENCE if REFERENCE in recorded else min(recorded)
        norms = recorded[first]
        foretold = {size: norms._replace(mean=norms.mean * math.sqrt(first / size)) for size in recorded}
        both = {"recorded": recorded, f"predicted from M = {first:g}": foretold}
        every = [(name, size, series) for name, found in both.items() for size, series in found.items()]
        data = pa.table(
            {
                "group": [lane.label for *_, series in every for _ in series.rounds],
                "of": [name for name, _, series in every for _ in series.rounds],
                "cohort_size": [size for _, size, series in every for _ in series.rounds],
                "round": np.concatenate([series.rounds for *_, series in every]),
                "mean": np.concatenate([series.mean for *_, series in every]),
            }
        )
        yield Figure(
            f"pseudo-gradient-norm-predicted-{number + 1}",
            f"Pseudo-gradient norm, recorded and predicted: {lane.label}",
            f"Predicted for each round by the inverse square root of the cohort's size, from M = {first:g}; means over "
            "trials.",
            data,
            tuple(Panel(name, partial(_curves, found)) for name, found in both.items()),
        )


def _curves(found: Mapping[float, Series], axes: Axes) -> None:
    for look, (size, series) in zip(looks(found), found.items(), strict=True):
        axes.plot(series.rounds, series.mean, **look.line(len(series.rounds), f"M = {size:g}"))
    axes.set_yscale("log")
    axes.set_xlabel("finished rounds")
    axes.set_ylabel(spoken(COLUMN))
    ticks.plain_logarithm(axes)
