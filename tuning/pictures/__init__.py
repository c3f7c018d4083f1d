"""Draws the pictures of a study, one file per picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import optuna

from raysim.report import curve
from tuning.pictures import curves, gap, heat_map, importance, pareto, regret
from tuning.result import Study
from tuning.space import Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_all"]


def draw_all(study: Study, space: Space, optuna_study: optuna.Study) -> None:
    """Write the pictures that are defined into the study's folder, a PNG for each."""
    figures: dict[str, Figure | None] = {
        "heat_map": heat_map.figure(study, space),
        "gap": gap.figure(study),
        "curves": curves.figure(study),
        "importance": importance.figure(study, optuna_study),
        "pareto": pareto.figure(study),
        "regret": regret.figure(study),
    }
    for name, picture in figures.items():
        if picture is not None:
            curve.save(picture, study.path / name)
