"""Draws the share of the trials' variance that each key explains alone, by Optuna's functional ANOVA."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import optuna
import pyarrow as pa
from optuna.importance import FanovaImportanceEvaluator

from raysim.report.gallery import axes as ticks
from raysim.report.gallery.figure import Figure
from raysim.report.looks import SERIES
from raysim.report.number_formats import share
from tuning.result import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

log = logging.getLogger("raysim")


def figure(study: Study, optuna_study: optuna.Study) -> Figure | None:
    """Return the picture; None if there is only one key, or if too few trials finished, or all have one value."""
    if len(study.best.values) < 2:
        return None
    try:
        # Not `get_param_importances`, which makes the shares add up to 1, whatever keys explain together only.
        found = FanovaImportanceEvaluator(seed=0).evaluate(optuna_study, target=lambda trial: trial.values[0])
    except (RuntimeError, ValueError) as error:
        log.debug("no importance: %s", error)
        return None
    if not sum(found.values()):
        return None
    return Figure(
        "importance",
        f"{study.name}: what {study.objective.label} depends on",
        "The share of the trials' variance that each key explains alone; the rest is of keys together.",
        pa.table({"group": list(found), "share": list(found.values())}),
        partial(_draw, found),
        height_in=0.8 + 0.35 * len(found),
    )


def _draw(found: Mapping[str, float], axes: Axes) -> None:
    bars = axes.barh(range(len(found))[::-1], list(found.values()), color=SERIES[0], height=0.6)
    axes.bar_label(bars, [share(value) for value in found.values()], padding=4)
    ticks.rows(axes, list(found))
    ticks.shares(axes, "x")
    axes.set_xlim(0, 1.25 * max(found.values()))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("share of the trials' variance")
