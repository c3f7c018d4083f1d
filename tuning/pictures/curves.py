"""Draws the learning curves of all trials: the best ones in colour, the others behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raysim.report.gallery import reference_marks
from raysim.report.gallery.figure import Figure
from raysim.report.looks import GREY, nth
from raysim.report.series import Series, over_trials
from raysim.run_folder.files import ROUNDS, checkpoints
from raysim.run_folder.round_table import read_rounds
from tuning.folder import runs_of
from tuning.pictures.values import over_rounds, write_values
from tuning.result import Study
from tuning.search import trial_folder
from tuning.writing import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_NAMED = 3
"""Number of the best finished trials that have a colour and a name."""

_Trial = tuple[Mapping[str, Any], Series]
"""Its row of the study, and its curve."""


def figure(study: Study) -> Figure | None:
    """Return the picture of the objective's figure by round, the mean over the seeds.

    None if no finished trial has two points.
    """
    rows = study.trials.to_pylist()
    sign = -1 if study.objective.is_maximised else 1
    order = sorted(rows, key=lambda row: (row["value"] is None, sign * (row["value"] or 0), row["trial"]))
    named: list[_Trial] = []
    others: list[_Trial] = []
    for row in order:
        curve = mean_curve(trial_folder(study.path, row["trial"]), study.objective.column)
        if curve is None or len(curve.rounds) < 2:
            continue
        if row["value"] is not None and len(named) < _NAMED:
            named.append((row, curve))
        else:
            others.append((row, curve))
    if not named:
        return None
    curves = [*named, *others]
    data = pa.table(
        {
            "group": [short(row, study.best.values) for row, curve in curves for _ in curve.rounds],
            "trial": [row["trial"] for row, curve in curves for _ in curve.rounds],
            "round": np.concatenate([curve.rounds for _, curve in curves]),
            "mean": np.concatenate([curve.mean for _, curve in curves]),
            "std": pa.array(np.concatenate([curve.deviation for _, curve in curves]), from_pandas=True),
        }
    )
    label = study.objective.figure.label
    return Figure(
        "curves",
        f"{study.name}: {label}, {len(curves)} trials",
        f"The best {len(named)} trials, mean and one standard deviation over their seeds; the others are grey.",
        data,
        partial(_draw, study, named, others),
    )


def _draw(study: Study, named: Sequence[_Trial], others: Sequence[_Trial], axes: Axes) -> None:
    for _, curve in others:
        axes.plot(curve.rounds, curve.mean, color=GREY, linewidth=0.6)
    shown_as = study.objective.figure
    for place, (row, curve) in enumerate(named):
        label = f"{short(row, study.best.values)}: {shown_as.text(curve.mean[-1])}"
        # The best one above the others, all above the grey ones at 2.
        axes.plot(curve.rounds, curve.mean, zorder=3 - place / len(named), **nth(place).line(len(curve.rounds), label))
        reference_marks.band(axes, nth(place), curve.rounds, curve)
    if not shown_as.is_share:
        # Diverging trials would leave no room for the others.
        shown = [value for _, curve in named for value in curve.mean]
        low, high = min(shown), max(shown)
        axes.set_ylim(low - 0.05 * (high - low), high + 0.3 * (high - low))
    write_values(axes, shown_as.is_share, shown_as.label)
    over_rounds(axes)


def mean_curve(folder: Path, column: str) -> Series | None:
    """Return the mean of a trial's runs, or of final runs, at the rounds that all seeds have.

    None if there is no such round, or the folder is on another machine.
    """
    seeds = [read_rounds(run) for run in runs_of(folder) if (run / ROUNDS).exists() or checkpoints(run)]
    found = over_trials(seeds, column)
    if found is None:
        return None
    common = found.at(np.flatnonzero(found.trials == len(seeds)))
    return common if len(common.rounds) else None
