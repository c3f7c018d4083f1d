"""Draws the share of the trials' variance that each key explains alone, by Optuna's functional ANOVA."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import optuna
from optuna.importance import FanovaImportanceEvaluator

from raysim.report.figures import share
from raysim.report.looks import INK, SERIES, plain
from tuning.result import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("raysim")


def figure(study: Study, optuna_study: optuna.Study) -> Figure | None:
    """Return the picture; None if there is only one key, or if too few trials finished, or all have one value."""
    if len(study.best.values) < 2:
        return None
    try:
        found = optuna.importance.get_param_importances(
            optuna_study, evaluator=FanovaImportanceEvaluator(seed=0), target=lambda trial: trial.values[0]
        )
    except (RuntimeError, ValueError) as error:
        log.debug("no importance: %s", error)
        return None
    if not sum(found.values()):
        return None
    from matplotlib.figure import Figure

    names, values = list(found)[::-1], list(found.values())[::-1]
    picture = Figure(figsize=(7.2, 1.4 + 0.45 * len(names)), dpi=150, layout="constrained")
    axes = picture.add_subplot()
    plain(axes, grid="x")
    bars = axes.barh(names, values, color=SERIES[0], height=0.6)
    axes.bar_label(bars, [share(value) for value in values], padding=4, color=INK)
    axes.set_xlim(0, 1.12 * max(values))
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.set_title(f"{study.name}: what {study.objective.label} depends on", loc="left", fontsize=12, color=INK)
    return picture
