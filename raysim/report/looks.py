"""Defines colours, dashes and markers of all pictures, plain axes, and each colour's replacement on a dark page."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize


INK, QUIET, FAINT, GREY, PAPER = "#222222", "#555555", "#DDDDDD", "#ABABAB", "#FFFFFF"
ON_DARK, ON_LIGHT = "#FDFDFD", "#111111"
"""Letters on a coloured ground, which does not change on a dark page."""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind people can distinguish; dashes and markers differ too, for grey paper."""

Dash = str | tuple[float, tuple[float, ...]]
"""As matplotlib takes it: "-" is solid; else an offset, and lengths of dashes and gaps in line widths."""

DASHES: tuple[Dash, ...] = (
    "-",
    (0, (4.5, 1.5)),
    (0, (1.2, 1.2)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (8, 2.5)),
    (0, (3, 1.2, 1.2, 1.2, 1.2, 1.2)),
)
MARKERS = "osD^vPX<>p*h"

DARK = MappingProxyType(
    {
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
)
"""Colour of a picture -> its replacement on a dark page."""

HEAT = "cividis"
"""matplotlib's colour map for heat maps: readable by colour-blind people, and in grey."""


LOGARITHMIC_ABOVE = 100.0
"""Positive values that span a larger factor go on a logarithmic scale, unless they are shares."""


def heat_scale(values: Iterable[float], is_share: bool) -> Normalize:
    """Return a scale of colours over all values; shares, whose best ones are close, are spread around their median.

    >>> scale = heat_scale([0.15, 0.55, 0.9, 0.95], is_share=True)
    >>> [round(float(scale(value)), 2) for value in (0.15, 0.55, 0.9, 0.95)]
    [0.0, 0.25, 0.88, 1.0]
    """
    from matplotlib.colors import LogNorm, PowerNorm

    ordered = sorted(values)
    low, high, middle = ordered[0], ordered[-1], ordered[len(ordered) // 2]
    if high <= low:
        # Of equal values none is worse.
        return PowerNorm(1.0, low - 1, high)
    if not is_share and low > 0 and high / low > LOGARITHMIC_ABOVE:
        return LogNorm(low, high)
    part = (middle - low) / (high - low)
    # A larger power would make all that is far from the best look the same.
    power = 2.0 if part >= 1 else 0.5 if part <= 0 else math.log(0.5) / math.log(part)
    return PowerNorm(min(2.0, max(0.5, power)), low, high)


def readable_on(red: float, green: float, blue: float) -> str:
    """Return the colour of letters on a ground with parts in 0..1."""
    return ON_LIGHT if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else ON_DARK


def variable(colour: str) -> str:
    """Return the CSS variable that holds a colour: "#0072B2" is "--c-0072b2"."""
    return f"--c-{colour.removeprefix('#').lower()}"


NAMED = 2 * len(SERIES)
"""More groups than this cannot be distinguished: then only the best are coloured and named."""

APART = 0.2
"""Distance of two markers of a line, as a share of the picture; those of other lines stand in between."""
FEW_POINTS = 10
"""A line of so many points has a marker at each."""


class CurveStyle(NamedTuple):
    """`is_named`: in legends, and with a band of deviations; the others are thin and grey, without markers."""

    colour: str
    dash: Dash = "-"
    is_named: bool = True
    marker: str = ""

    @property
    def css_dashes(self) -> str:
        """The dashes as SVG has them, for a line two units wide; nothing for a solid line."""
        return "" if isinstance(self.dash, str) else " ".join(f"{2 * length:g}" for length in self.dash[1])

    def line(self, num_points: int, label: str | None = None) -> dict[str, Any]:
        """Return what `axes.plot` takes: a line with few markers, or thin without them; `label`: in the legend."""
        look = {"color": self.colour, "linestyle": self.dash}
        if not self.is_named:
            # A point without a marker would be nothing.
            return {**look, "linewidth": 0.6, "marker": "o" if num_points == 1 else ""}
        start = APART * (0.1 + MARKERS.index(self.marker) / len(MARKERS))
        every = None if num_points <= FEW_POINTS else (start, APART)
        return {**look, "marker": self.marker, "markevery": every, "label": label}

    def points(self, label: str | None = None) -> dict[str, Any]:
        """Return the same with a marker at every point; of an unnamed group, too."""
        return {**self.line(1, label), "marker": self.marker or "o"}


def nth(place: int) -> CurveStyle:
    """Return the look of the series at this place; from NAMED on they repeat."""
    again, colour = divmod(place % NAMED, len(SERIES))
    dash = DASHES[(colour + again * len(DASHES) // 2) % len(DASHES)]
    return CurveStyle(SERIES[colour], dash, marker=MARKERS[place % NAMED])


def looks(scores: Iterable[float]) -> list[CurveStyle]:
    """Return a look for each group, by its score (larger is better)."""
    values = list(scores)
    if len(values) <= NAMED:
        return [nth(place) for place in range(len(values))]
    best = sorted(range(len(values)), key=lambda i: -values[i])[: len(SERIES)]
    return [nth(best.index(i)) if i in best else CurveStyle(GREY, "-", False) for i in range(len(values))]


def plain(axes: Axes, grid: Literal["x", "y"] | None = "y") -> None:
    """Remove the frame except the line below; draw faint lines for the values."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.tick_params(axis="both", color=INK, labelcolor=INK)
    if grid is not None:
        axes.grid(axis=grid, color=FAINT, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
