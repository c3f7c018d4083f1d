"""Draws trials as points over two keys, coloured by the objective, for spaces without a grid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raysim.report.gallery import axes as ticks
from raysim.report.looks import INK
from tuning.dimension import Dimension, Range
from tuning.pictures.values import BEST, Shades
from tuning.result import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def scatter(axes: Axes, study: Study, keys: tuple[str, str], dimensions: tuple[Dimension, Dimension]) -> None:
    """Draw the trials; trials without a value are crosses, the best one has a ring."""
    rows = study.trials.to_pylist()
    done = [row for row in rows if row["value"] is not None]
    rest = [row for row in rows if row["value"] is None]
    values = [row["value"] for row in done]
    shades = Shades.of(values, study.objective)
    x, y = ([row[key] for row in done] for key in keys)
    drawn = axes.scatter(
        x, y, c=values, cmap=shades.colours, norm=shades.scale, s=50, edgecolors=INK, linewidths=0.5, zorder=3
    )
    x, y = ([row[key] for row in rest] for key in keys)
    axes.scatter(x, y, marker="x", c=INK, s=25)
    x, y = ([study.best.values[key]] for key in keys)
    axes.scatter(x, y, s=150, facecolors="none", edgecolors=BEST, linewidths=2, zorder=4)
    for dimension, scale in zip(dimensions, (axes.set_xscale, axes.set_yscale), strict=True):
        if _spans_decades(dimension):
            scale("log")
    ticks.colour_bar(axes, drawn, shades.scale, study.objective.label, study.objective.is_share)


def _spans_decades(dimension: Dimension) -> bool:
    if isinstance(dimension, Range):
        return dimension.kind == "log"
    low, high = min(dimension.values), max(dimension.values)
    return low > 0 and math.log10(high / low) >= 1
