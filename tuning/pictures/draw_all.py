"""All pictures that a study has something to show in."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import optuna

from tuning.files import write_whole
from tuning.pictures import curves, gap, heat_map, importance
from tuning.result import Study
from tuning.space import Space

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("raysim")


def draw_all(study: Study, space: Space, optuna_study: optuna.Study) -> None:
    """Write heat_map.png, gap.png, curves.png and importance.png into the study's folder, where they are defined.

    A picture that cannot be written is a warning in the log: the study that it shows is not in question.
    """
    made: dict[str, Figure | None] = {
        "heat_map": heat_map.figure(study, space),
        "gap": gap.figure(study),
        "curves": curves.figure(study),
        "importance": importance.figure(study, optuna_study),
    }
    for name, picture in made.items():
        if picture is None:
            continue
        file = study.path / f"{name}.png"
        try:
            write_whole(file, partial(picture.savefig, format="png"))
        except OSError as error:
            log.warning("The picture %s could not be written: %s", file, error)
