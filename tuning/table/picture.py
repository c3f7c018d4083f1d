"""Draws a comparison of tuners: regret and mean rank against the spent budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.experiment.pictures import EVERY_FORMAT, ReportSection
from raysim.report.gallery import axes as ticks
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.looks import nth
from raysim.report.picture_files import DATA, save
from raysim.storage import disk
from raysim.storage.remote.uri import check_is_path
from tuning.budget import written
from tuning.errors import StudyError
from tuning.table.compare import TunerComparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write(comparison: TunerComparison, folder: Path, report: ReportSection | None = None) -> list[Path]:
    """Write the picture and its data into the folder; return their files.

    Args:
        comparison: of tuners.
        folder: it is made where it is missing.
        report: the formats, size and letters of the picture.
    """
    check_is_path(folder, "The folder of picture and CSV (--out)", StudyError)
    report = report or ReportSection()
    disk.make_folder(folder)
    picture = figure(comparison)
    save(picture, folder, report)
    return [folder / f"{picture.name}.{kind}" for kind in (*(report.formats or EVERY_FORMAT), DATA)]


def figure(comparison: TunerComparison) -> Figure:
    """Return the picture: a line for each tuner, with a band of one standard error over its studies."""
    unit = written(comparison.budget.unit, 0).removeprefix("0 ")
    rows = comparison.table.to_pylist()
    return Figure(
        "tuners",
        f"{comparison.name}: tuners by {comparison.objective.label}",
        f"Mean and one standard error over {comparison.studies:,} studies each.",
        comparison.table,
        tuple(
            Panel("", partial(_draw, rows, column, label, unit))
            for column, label in (("regret", "regret"), ("rank", "mean rank"))
        ),
        shares_y=False,
    )


def _draw(rows: Sequence[Mapping[str, Any]], column: str, label: str, unit: str, axes: Axes) -> None:
    for place, tuner in enumerate(dict.fromkeys(row["tuner"] for row in rows)):
        own = [row for row in rows if row["tuner"] == tuner]
        spent, mean = (np.array([row[name] for row in own]) for name in ("spent", column))
        error = np.array([row[f"{column}/standard_error"] or 0.0 for row in own])
        look = nth(place)
        axes.plot(spent, mean, **look.line(len(own), tuner))
        axes.fill_between(spent, mean - error, mean + error, color=look.colour, alpha=0.2, linewidth=0)
    if column == "regret" and all(row["regret"] > 0 for row in rows):
        axes.set_yscale("log")
        ticks.plain_logarithm(axes)
    axes.set_ylabel(label)
    ticks.counts(axes)
    axes.set_xlabel(unit)
