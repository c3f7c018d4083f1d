"""How the axes of a picture look that stands by itself: only what is needed to read values off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from raysim.report.palette import FAINT, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plain(axes: Axes, grid: Literal["x", "y"] | None = "y") -> None:
    """No frame but the line below; faint lines across for the values."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.tick_params(axis="both", labelsize=10, color=INK, labelcolor=INK)
    if grid is not None:
        axes.grid(axis=grid, color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
