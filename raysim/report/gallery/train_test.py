"""Draws training and test accuracy by round and at the end, and the gap between them.

Sources: Charles et al. (2021), figure 1; Varno et al. (2022), figure 5.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.report.gallery import axes as ticks
from raysim.report.gallery import curves, lanes
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group, groups_to_list
from raysim.report.looks import GREY, nth
from raysim.report.series import over_trials

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TEST, TRAIN = "eval/test/accuracy", "eval/train/accuracy"
GAP = "train minus test accuracy"


def training_column(groups: Sequence[Group], of: str = TEST) -> str:
    """Return the column of training that stands beside a column such as TEST: an evaluation's, else the cohort's."""
    metric = of.rpartition("/")[2]
    evaluated = TRAIN.replace("accuracy", metric)
    names = {name for group in groups for run in group.runs for name in run.rounds.column_names}
    return evaluated if evaluated in names else metric


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield the figures if the test split was evaluated."""
    names = {name for group in groups for run in group.runs for name in run.rounds.column_names}
    if TEST not in names:
        return
    train = training_column(groups)
    which = (
        "Training accuracy is that of the training clients' evaluation."
        if train == TRAIN
        else "Training accuracy is measured during the cohort's local training; evaluation.split = ['test', 'train'] "
        "would evaluate training clients."
    )
    yield from _by_round(groups, train, which)
    rows = []
    for group in groups:
        finals = [_final(run.rounds, train) for run in group.runs]
        pairs = [pair for pair in finals if pair is not None]
        if pairs:
            trains, tests = zip(*pairs, strict=True)
            means = [statistics.fmean(finals) for finals in (trains, tests)]
            rows.append((group.label, *means, *map(lanes.deviation, (trains, tests)), len(pairs)))
    if not rows:
        return
    labels_of, *figures, trials = zip(*rows, strict=True)
    columns = dict(zip(("train", "test", "train_std", "test_std"), figures, strict=True))
    numbers = {name: pa.array(values, pa.float64()) for name, values in columns.items()}
    data = pa.table({"group": labels_of, **numbers, "trials": trials})
    labels = {group.label for group in groups_to_list(groups)}
    shown = [row for row in rows if row[0] in labels]
    yield Figure(
        "train-and-test",
        "Train against test accuracy",
        "The last round in which both are known, mean and one standard deviation over trials; the grey bar between "
        f"them is the gap. {which}",
        data,
        partial(_draw, shown),
        height_in=1.4 + 0.3 * len(shown),
    )
    gaps = [line for group in groups if (line := _gap(group, train, len(groups))) is not None]
    if gaps:
        yield curves.figure("train-test-gap", "Train minus test accuracy", f"Mean over trials. {which}", gaps, GAP)


def _by_round(groups: Sequence[Group], train: str, which: str) -> Iterator[Figure]:
    """Yield the curves of both in panels side by side, on one axis of accuracy."""
    lines_by_title = {
        title: (column, curves.lines(groups, column)) for title, column in (("training", train), ("test", TEST))
    }
    if all(lines for _, lines in lines_by_title.values()):
        yield curves.beside(
            "train-and-test-by-rounds",
            "Training beside test accuracy, against rounds",
            f"Mean over trials, with one standard deviation either way. {which}",
            "accuracy",
            lines_by_title,
        )


def _final(rounds: pa.Table, train: str) -> tuple[float, float] | None:
    """Return (train, test) of the last round in which both are known."""
    both = _both(rounds, train)
    return None if both is None or not both.num_rows else tuple(both.slice(both.num_rows - 1).to_pylist()[0].values())


def _both(rounds: pa.Table, train: str) -> pa.Table | None:
    if not {train, TEST} <= set(rounds.column_names):
        return None
    both = pa.table({name: pc.cast(rounds[name], pa.float64(), safe=False) for name in (train, TEST)})
    return both.filter(pc.and_(pc.is_finite(both[train]), pc.is_finite(both[TEST])))


def _gap(group: Group, train: str, num_groups: int) -> curves.GroupCurve | None:
    tables = []
    for run in group.runs:
        if {train, TEST} <= set(run.rounds.column_names):
            gap = pc.subtract(*(pc.cast(run.rounds[name], pa.float64(), safe=False) for name in (train, TEST)))
            tables.append(pa.table({"round": run.rounds["round"], "gap": gap}))
    series = over_trials(tables, "gap")
    if series is None:
        return None
    kept = curves.drawn_points(len(series.rounds), num_groups)
    return curves.GroupCurve(group, series.rounds[kept].astype(np.float64), series.at(kept))


def _draw(shown: Sequence[tuple[Any, ...]], axes: Axes) -> None:
    places = list(range(len(shown)))[::-1]
    trains, tests, *around = (list(column) for column in zip(*(row[1:5] for row in shown), strict=True))
    axes.hlines(places, tests, trains, color=GREY, linewidth=2)
    for means, bars, name, look in ((trains, around[0], "train", nth(4)), (tests, around[1], "test", nth(0))):
        looks = {**look.points(name), "linestyle": "", "marker": "s" if name == "train" else "o"}
        axes.errorbar(means, places, xerr=lanes.bars(bars), capsize=2.5, **looks)
    ticks.rows(axes, [row[0] for row in shown])
    ticks.shares(axes, "x")
    axes.set_xlabel("accuracy")
