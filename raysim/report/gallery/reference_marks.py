"""Draws what goes with a curve: a reference line, and the band of a standard deviation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from raysim.arrays import Float64s, Int64s
from raysim.report.looks import GREY, CurveStyle
from raysim.report.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def dashed(axes: Axes, x: Sequence[float] | Float64s, y: Sequence[float] | Float64s) -> None:
    """Draw a thin grey reference line: a prediction, an ideal, a bound."""
    axes.plot(x, y, color=GREY, linestyle=(0, (3, 2)), linewidth=1.2)


def band(axes: Axes, look: CurveStyle, x: Float64s | Int64s, y: Series) -> None:
    """Shade one standard deviation around a line, if it is named and has several trials."""
    if look.is_named and np.isfinite(y.deviation).any():
        around = np.nan_to_num(y.deviation)
        axes.fill_between(x, y.mean - around, y.mean + around, color=look.colour, alpha=0.18, linewidth=0)
