"""Draws the objective against what a trial has used, by default bytes: which trials no other one beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raysim.report.gallery import axes as ticks
from raysim.report.gallery.figure import Figure
from raysim.report.looks import GREY, INK, NAMED, nth
from tuning.budget import written
from tuning.pictures.values import write_values
from tuning.result import COST, Study, cost_column
from tuning.writing import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figure(study: Study) -> Figure | None:
    """Return the picture of all finished trials; None if all cost the same."""
    cost = study.cost or COST
    unit = written(cost, 0).removeprefix("0 ")
    used = cost_column(cost, study.best.values)
    rows = [row for row in study.trials.to_pylist() if row["value"] is not None and row.get(used)]
    if len({row[used] for row in rows}) < 2:
        return None
    columns = {"trial": "trial", cost: used, "value": "value"}
    return Figure(
        "pareto",
        f"{study.name}: {study.objective.label} against {unit}",
        "A point for each trial; of those on the line no other one beats both.",
        pa.table(
            {
                "group": [short(row, study.best.values) for row in rows],
                **{name: [row[column] for row in rows] for name, column in columns.items()},
            }
        ),
        partial(_draw, study, rows, used, unit),
    )


def _draw(study: Study, rows: Sequence[Mapping[str, Any]], used: str, unit: str, axes: Axes) -> None:
    axes.plot([row[used] for row in rows], [row["value"] for row in rows], "o", color=GREY)
    front = sorted((row for row in rows if row["trial"] in study.front), key=lambda row: row[used])
    axes.step([row[used] for row in front], [row["value"] for row in front], where="post", color=INK, linewidth=0.8)
    for place, row in enumerate(front):
        look = {**nth(place).points(short(row, study.best.values)), "linestyle": "", "markersize": 6}
        axes.plot([row[used]], [row["value"]], **(look if place < NAMED else {**look, "label": None}))
    ticks.counts(axes)
    axes.set_xlabel(f"{unit} of a trial, all seeds{', down and up' if used == COST else ''}")
    write_values(axes, study.objective.is_share, study.objective.label)
