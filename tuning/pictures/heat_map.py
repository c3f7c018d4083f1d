"""Draws the objective over two keys, such as client and server learning rate.

A cell for each pair of listed values, or a point for each trial (Charles et al., 2021; the Field Guide's figure 2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.report.looks import FAINT, INK, PAPER, plain
from tuning.dimension import Listed
from tuning.pictures.scatter import scatter
from tuning.pictures.values import BEST, Colours
from tuning.result import Study
from tuning.space import Space
from tuning.writing import figure as written
from tuning.writing import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def figure(study: Study, space: Space) -> Figure | None:
    """Return the picture; None if there are no two keys with numbers, or if no trial has a value.

    Of more than two keys it shows the first two, each cell with the best of its trials.
    """
    keys = [key for key, d in space.dimensions.items() if not isinstance(d, Listed) or d.ordered]
    if len(keys) < 2 or study.trials["value"].null_count == study.trials.num_rows:
        return None
    from matplotlib.figure import Figure

    x_key, y_key = keys[:2]
    x, y = space.dimensions[x_key], space.dimensions[y_key]
    picture = Figure(figsize=(7.2, 5.4), dpi=150, layout="constrained")
    axes = picture.add_subplot()
    plain(axes, grid=None)
    if isinstance(x, Listed) and isinstance(y, Listed):
        _cells(axes, study, (x_key, y_key), (sorted(x.values), sorted(y.values)))
    else:
        scatter(picture, axes, study, (x_key, y_key), (x, y))
    axes.set_xlabel(x_key, color=INK)
    axes.set_ylabel(y_key, color=INK)
    unit = " in percent" if study.objective.is_share else ""
    more = "" if len(space.dimensions) == 2 else ", best over the other keys"
    axes.set_title(f"{study.name}: {study.objective.label}{unit}{more}", loc="left", fontsize=12, color=INK)
    return picture


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
    colours = Colours.of(list(best.values()), study.objective)
    grid = np.full((len(y_values), len(x_values)), np.nan)
    for (x, y), value in best.items():
        grid[y, x] = value
        text = written(study.objective, value).removesuffix(" %")
        axes.text(x, y, text, ha="center", va="center", fontsize=10, color=colours.ink(value))
    for x, y in np.ndindex(len(x_values), len(y_values)):
        if (x, y) not in best:
            axes.text(x, y, other.get((x, y), "not tried"), ha="center", va="center", fontsize=8, color=INK)
    axes.imshow(grid, origin="lower", cmap=colours.name, vmin=colours.low, vmax=colours.high, aspect="auto")
    axes.set_facecolor(FAINT)
    _frame(axes, x_values.index(study.best.values[x_key]), y_values.index(study.best.values[y_key]))
    axes.set_xticks(range(len(x_values)), [number(value) for value in x_values])
    axes.set_yticks(range(len(y_values)), [number(value) for value in y_values])
    axes.set_xticks(np.arange(len(x_values) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(y_values) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=PAPER, linewidth=2)
    axes.tick_params(which="both", length=0)
    axes.spines["bottom"].set_visible(False)


def _frame(axes: Axes, x: int, y: int) -> None:
    """Frame the best cell."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.47, y - 0.47), 0.94, 0.94, fill=False, edgecolor=BEST, linewidth=3))
