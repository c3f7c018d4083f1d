"""Draws the objective against what a trial has used up, by default bytes: which trials no other one beats in both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.report.looks import GREY, INK, SERIES, plain
from tuning.budget import written
from tuning.pictures.values import write_values
from tuning.result import COST, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(study: Study) -> Figure | None:
    """Return the picture of all finished trials; None if all cost the same."""
    cost = study.cost or COST
    rows = [row for row in study.trials.to_pylist() if row["value"] is not None and row.get(cost)]
    if len({row[cost] for row in rows}) < 2:
        return None
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    picture = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = picture.add_subplot()
    plain(axes)
    axes.scatter([row[cost] for row in rows], [row["value"] for row in rows], s=24, color=GREY)
    front = sorted((row for row in rows if row["trial"] in study.front), key=lambda row: row[cost])
    axes.step([row[cost] for row in front], [row["value"] for row in front], where="post", color=SERIES[0], linewidth=1)
    axes.scatter([row[cost] for row in front], [row["value"] for row in front], s=36, color=SERIES[0], zorder=3)
    for row in front:
        axes.annotate(
            f"trial {row['trial']}", (row[cost], row["value"]), (4, 4), textcoords="offset points", fontsize=9
        )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda amount, _: written(cost, amount).split()[0]))
    unit = written(cost, 0).removeprefix("0 ")
    axes.set_xlabel(f"{unit} of a trial, all seeds{', down and up' if cost == COST else ''}", color=INK)
    write_values(axes.yaxis, study.objective)
    axes.set_title(f"{study.name}: {study.objective.label} against {unit}", loc="left", fontsize=12, color=INK)
    return picture
