"""Draws the loss on the line through two models: McMahan et al. (2017), figure 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.report.gallery import reference_marks
from raysim.report.gallery.figure import Figure
from raysim.report.looks import GREY, SERIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "interpolation"
"""Of the picture's files."""


def figure(rows: Sequence[Mapping[str, float]], names: tuple[str, str], split: str) -> Figure:
    """Return the picture of rows with `theta` and `loss`; the model at theta = 1 is the first of the two names."""
    first, second = names
    better = "" if _better(rows) is None else "; the dashed line is the better of the two"
    return Figure(
        NAME,
        f"{split} loss between two models",
        f"The model is theta w + (1 - theta) w', w from {first} and w' from {second}{better}.",
        pa.Table.from_pylist([{"group": f"{first} and {second}", **row} for row in rows]),
        lambda axes: _draw(axes, rows, split),
    )


def _better(rows: Sequence[Mapping[str, float]]) -> float | None:
    """Return the lesser loss of the two models; None if one of them was not scored, or has no number as its loss."""
    loss = {row["theta"]: row["loss"] for row in rows if not math.isnan(row["loss"])}
    return min(loss[0.0], loss[1.0]) if {0.0, 1.0} <= loss.keys() else None


def _draw(axes: Axes, rows: Sequence[Mapping[str, float]], split: str) -> None:
    thetas, losses = [row["theta"] for row in rows], [row["loss"] for row in rows]
    axes.plot(thetas, losses, color=SERIES[0], linewidth=1.6)
    if (better := _better(rows)) is not None:
        reference_marks.dashed(axes, [thetas[0], thetas[-1]], [better] * 2)
    for end in (0.0, 1.0):
        axes.axvline(end, color=GREY, linewidth=0.8)
    axes.set_xlabel("theta")
    axes.set_ylabel(f"{split} loss")
