"""Draws a comparison of tuners: regret and mean rank against the spent budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pyarrow import csv

from raysim.report import curve
from raysim.report.curve import spread
from raysim.report.looks import INK, QUIET, SERIES, plain
from raysim.storage.atomic import write as write_file
from tuning.budget import written
from tuning.table.compare import TunerComparison

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAP = 0.06
_DASHES = ("-", "--", ":")


def write(comparison: TunerComparison, folder: Path) -> list[Path]:
    """Write tuners.png and tuners.csv into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    picture, data = folder / "tuners.png", folder / "tuners.csv"
    curve.save(figure(comparison), picture.with_suffix(""))
    write_file(data, lambda file: csv.write_csv(comparison.table, file))
    return [picture, data]


def figure(comparison: TunerComparison) -> Figure:
    """Return the picture: a line for each tuner, with a band of one standard error over its studies."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(8.4, 6.4), dpi=150, layout="constrained")
    axes = picture.subplots(2, 1, sharex=True)
    rows = comparison.table.to_pylist()
    tuners = list(dict.fromkeys(row["tuner"] for row in rows))
    for panel, (name, label) in zip(axes, (("regret", "regret"), ("rank", "mean rank")), strict=True):
        plain(panel)
        ends = []
        for place, tuner in enumerate(tuners):
            own = [row for row in rows if row["tuner"] == tuner]
            spent, mean = (np.array([row[column] for row in own]) for column in ("spent", name))
            error = np.array([row[f"{name}/standard_error"] or 0.0 for row in own])
            colour, dash = SERIES[place % len(SERIES)], _DASHES[place // len(SERIES) % len(_DASHES)]
            panel.plot(spent, mean, color=colour, linestyle=dash, linewidth=2)
            panel.fill_between(spent, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)
            ends.append((tuner, mean[-1], colour))
        if name == "regret" and all(row["regret"] > 0 for row in rows):
            panel.set_yscale("log")
        panel.set_ylabel(label, color=INK)
        # In the panel's own coordinates, so that a logarithmic axis spreads its labels, too.
        to_panel = panel.transData + panel.transAxes.inverted()
        heights = spread([to_panel.transform((0.0, end))[1] for _, end, _ in ends], _GAP)
        for (tuner, _, colour), height in zip(ends, heights, strict=True):
            panel.text(1.02, height, tuner, transform=panel.transAxes, va="center", color=colour, weight="bold")
    axes[1].set_xlabel(written(comparison.budget.unit, 0).removeprefix("0 "), color=QUIET)
    axes[0].set_title(
        f"{comparison.name}: tuners by {comparison.objective.label}, {comparison.studies:,} studies each",
        loc="left",
        fontsize=12,
        color=INK,
    )
    return picture
