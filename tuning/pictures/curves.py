"""Draws the learning curves of all trials: the best ones in colour, the others behind them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raysim.report.curve import spread
from raysim.report.looks import GREY, INK, SERIES, plain
from raysim.report.series import Series, over_trials
from raysim.storage import parquet
from tuning.errors import StudyError
from tuning.pictures.values import over_rounds, write_values
from tuning.result import Study
from tuning.search import trial_folder
from tuning.writing import figure as written

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NAMED = 3
"""Number of the best finished trials that have a colour and a label."""
_GAP = 0.06


def figure(study: Study) -> Figure | None:
    """Return the picture of the objective's figure by round, the mean over the seeds.

    None if no finished trial has two points.
    """
    rows = study.trials.to_pylist()
    sign = -1 if study.objective.is_maximised else 1
    order = sorted(rows, key=lambda row: (row["value"] is None, sign * (row["value"] or 0), row["trial"]))
    named: list[tuple[int, Series]] = []
    others: list[Series] = []
    for row in order:
        curve = mean_curve(trial_folder(study.path, row["trial"]), study.objective.column)
        if curve is None or len(curve.rounds) < 2:
            continue
        if row["value"] is not None and len(named) < _NAMED:
            named.append((row["trial"], curve))
        else:
            others.append(curve)
    if not named:
        return None
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = picture.add_subplot()
    plain(axes)
    for curve in others:
        axes.plot(curve.rounds, curve.mean, color=GREY, linewidth=0.9)
    for (_, curve), colour in reversed(list(zip(named, SERIES, strict=False))):
        axes.plot(curve.rounds, curve.mean, color=colour, linewidth=2)
    shown_as = study.objective.by_round
    if not shown_as.is_share:
        # Diverging trials would leave no room for the others.
        shown = [value for _, curve in named for value in curve.mean]
        low, high = min(shown), max(shown)
        axes.set_ylim(low - 0.05 * (high - low), high + 0.3 * (high - low))
    low, high = axes.get_ylim()
    heights = spread([(curve.mean[-1] - low) / (high - low) for _, curve in named], _GAP)
    for (trial, curve), colour, height in zip(named, SERIES, heights, strict=False):
        label = f"{written(shown_as, curve.mean[-1])}  trial {trial}"
        axes.text(1.02, height, label, transform=axes.transAxes, va="center", fontsize=10, color=colour, weight="bold")
    write_values(axes.yaxis, shown_as)
    over_rounds(axes)
    axes.set_title(
        f"{study.name}: {shown_as.label}, {len(named) + len(others)} trials", loc="left", fontsize=12, color=INK
    )
    return picture


def mean_curve(folder: Path, column: str) -> Series | None:
    """Return the mean of a trial's runs, or of final runs, at the rounds that all seeds have.

    None if there is no such round, or the folder is on another machine.
    """
    seeds = [parquet.read(file, StudyError) for file in sorted(folder.glob("seed-*/rounds.parquet"))]
    found = over_trials(seeds, column)
    if found is None:
        return None
    common = found.at(np.flatnonzero(found.trials == len(seeds)))
    return common if len(common.rounds) else None
