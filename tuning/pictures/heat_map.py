"""Draws the objective over two keys, such as client and server learning rate.

A cell for each pair of listed values, or a point for each trial (Charles et al., 2021; the Field Guide's figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.report.gallery import axes as ticks
from raysim.report.gallery.figure import Figure
from raysim.report.looks import FAINT, INK, PAPER
from tuning.dimension import Listed
from tuning.pictures.scatter import scatter
from tuning.pictures.values import BEST, Shades
from tuning.result import Study
from tuning.space import Space
from tuning.writing import figure as written
from tuning.writing import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT_IN = 3.6


def figure(study: Study, space: Space) -> Figure | None:
    """Return the picture; None if there are no two keys with numbers, or if no trial has a value.

    Of more than two keys it shows the first two, each cell with the best of its trials.
    """
    keys = [key for key, d in space.dimensions.items() if not isinstance(d, Listed) or d.ordered]
    if len(keys) < 2 or study.trials["value"].null_count == study.trials.num_rows:
        return None
    more = "" if len(space.dimensions) == 2 else ", best over the other keys"
    return Figure(
        "heat_map",
        f"{study.name}: {study.objective.label}{more}",
        "The frame, or the ring, is at the best trial.",
        study.trials.select([*keys[:2], "outcome", "value"]).add_column(0, "group", [[study.name] * len(study.trials)]),
        partial(_draw, study, space, (keys[0], keys[1])),
        height_in=HEIGHT_IN,
    )


def _draw(study: Study, space: Space, keys: tuple[str, str], axes: Axes) -> None:
    x, y = (space.dimensions[key] for key in keys)
    if isinstance(x, Listed) and isinstance(y, Listed):
        _cells(axes, study, keys, (sorted(x.values), sorted(y.values)))
    else:
        scatter(axes, study, keys, (x, y))
    axes.set_xlabel(keys[0])
    axes.set_ylabel(keys[1])


def _cells(axes: Axes, study: Study, keys: tuple[str, str], values: tuple[Sequence[Any], Sequence[Any]]) -> None:
    (x_key, y_key), (x_values, y_values) = keys, values
    best: dict[tuple[int, int], float] = {}
    other: dict[tuple[int, int], str] = {}
    better = max if study.objective.is_maximised else min
    for row in study.trials.to_pylist():
        cell = x_values.index(row[x_key]), y_values.index(row[y_key])
        if row["value"] is None:
            other.setdefault(cell, row["outcome"])
        else:
            best[cell] = better(row["value"], best.get(cell, row["value"]))
    shades = Shades.of(list(best.values()), study.objective)
    grid = np.full((len(y_values), len(x_values)), np.nan)
    for (x, y), value in best.items():
        grid[y, x] = value
        text = written(study.objective, value).removesuffix(" %")
        axes.text(x, y, text, ha="center", va="center", fontsize="small", color=shades.ink(value))
    for x, y in np.ndindex(len(x_values), len(y_values)):
        if (x, y) not in best:
            axes.text(x, y, other.get((x, y), "not tried"), ha="center", va="center", fontsize="x-small", color=INK)
    edges = [np.arange(len(found) + 1) - 0.5 for found in (x_values, y_values)]
    mesh = axes.pcolormesh(*edges, grid, cmap=shades.colours, norm=shades.scale, edgecolors=PAPER, linewidth=1.5)
    ticks.colour_bar(axes, mesh, shades.scale, study.objective.label, study.objective.is_share)
    axes.set_facecolor(FAINT)
    _frame(axes, x_values.index(study.best.values[x_key]), y_values.index(study.best.values[y_key]))
    axes.set_xticks(range(len(x_values)), [number(value) for value in x_values])
    axes.set_yticks(range(len(y_values)), [number(value) for value in y_values])
    axes.grid(visible=False)
    axes.tick_params(length=0)


def _frame(axes: Axes, x: int, y: int) -> None:
    """Frame the best cell."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor=BEST, linewidth=2.5))
