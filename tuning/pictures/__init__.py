"""Draws the pictures of a study: each in the formats of `[report]`, with its data."""

from __future__ import annotations

import logging

import optuna

from raysim import DiskError
from raysim.experiment.pictures import ReportSection
from raysim.report.picture_files import redraw
from tuning.pictures import curves, gap, heat_map, importance, pareto, regret
from tuning.result import Study
from tuning.space import Space

__all__ = ["draw_all"]

log = logging.getLogger("raysim")


def draw_all(study: Study, space: Space, optuna_study: optuna.Study, report: ReportSection) -> None:
    """Write the pictures that are defined into the study's folder.

    A failure is a warning in the log, because the study itself is not affected.
    """
    figures = (
        heat_map.figure(study, space),
        gap.figure(study),
        curves.figure(study),
        importance.figure(study, optuna_study),
        pareto.figure(study),
        regret.figure(study),
    )
    for picture in figures:
        if picture is not None:
            try:
                redraw(picture, study.path, report)
            except DiskError as error:
                log.warning("The picture %s", error)
