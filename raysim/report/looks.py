"""Defines colours, dashes and plain axes of all pictures, and the replacement of each colour on a dark page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes


INK, QUIET, FAINT, GREY, PAPER = "#222222", "#555555", "#DDDDDD", "#ABABAB", "#FFFFFF"
ON_DARK, ON_LIGHT = "#FDFDFD", "#111111"
"""Letters on a coloured ground, which does not change on a dark page."""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind people can distinguish; dashes or markers differ too."""

DARK = {
    INK: "#E6E6E6",
    QUIET: "#B4B9BE",
    FAINT: "#3A3F44",
    GREY: "#7C8288",
    PAPER: "#16191C",
    "#0072B2": "#4C9BE8",
    "#D55E00": "#F07F35",
    "#009E73": "#2FC79A",
    "#CC79A7": "#E29AC3",
    "#E69F00": "#F2BC45",
    "#56B4E9": "#9ADBFF",
}
"""Colour of a picture -> its replacement on a dark page."""

HEAT = "cividis"
"""matplotlib's colour map for heat maps: readable by colour-blind people, and in grey."""


def readable_on(red: float, green: float, blue: float) -> str:
    """Return the colour of letters on a ground with parts in 0..1."""
    return ON_LIGHT if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else ON_DARK


def variable(colour: str) -> str:
    """Return the CSS variable that holds a colour: "#0072B2" is "--c-0072b2"."""
    return f"--c-{colour.removeprefix('#').lower()}"


NAMED = 2 * len(SERIES)
"""More groups than this cannot be distinguished: then only the best are coloured and named."""


class CurveStyle(NamedTuple):
    """`is_named`: in legends, and with a band of deviations; the others are thin and grey."""

    colour: str
    dash: Literal["-", "--"] = "-"
    is_named: bool = True

    @property
    def width(self) -> float:
        """Of lines, in points."""
        return 1.6 if self.is_named else 0.6


def looks(scores: Iterable[float]) -> list[CurveStyle]:
    """Return a look for each group, by its score (larger is better)."""
    values = list(scores)
    if len(values) <= NAMED:
        return [CurveStyle(SERIES[i % len(SERIES)], "-" if i < len(SERIES) else "--") for i in range(len(values))]
    best = sorted(range(len(values)), key=lambda i: -values[i])[: len(SERIES)]
    return [
        CurveStyle(SERIES[best.index(i)]) if i in best else CurveStyle(GREY, "-", False) for i in range(len(values))
    ]


def plain(axes: Axes, grid: Literal["x", "y"] | None = "y") -> None:
    """Remove the frame except the line below; draw faint lines for the values."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.tick_params(axis="both", labelsize=10, color=INK, labelcolor=INK)
    if grid is not None:
        axes.grid(axis=grid, color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
