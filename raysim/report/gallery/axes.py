"""Formats the axes of all figures: shares, times and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from raysim.report.looks import GREY
from raysim.report.series import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONG_NAME, ROW_TICKS = 28, 4
TICK_LETTERS = 20
"""With more letters in all, the texts below an axis are turned."""
LOGARITHMIC_ABOVE = 100.0
"""Positive values that span a larger factor go on a logarithmic axis."""


def shares(axes: Axes, which: str = "y") -> None:
    """Write an axis's ticks in percent."""
    from matplotlib.ticker import PercentFormatter

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a picture, from height len(names) - 1 down to 0; long names are broken at a comma."""
    from matplotlib.ticker import MaxNLocator

    # Names leave little width for the figures below.
    axes.xaxis.set_major_locator(MaxNLocator(ROW_TICKS))
    shown = [name.replace(", ", ",\n", 1) if len(name) > LONG_NAME else name for name in names]
    axes.set_yticks(range(len(names))[::-1], shown)
    axes.set_ylim(-0.6, len(names) - 0.4)


def rounds(axes: Axes) -> None:
    """Write the ticks of x as numbers of rounds, which are whole."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def counts(axes: Axes) -> None:
    """Write the ticks of x as counts with a unit prefix: 12 k, 3 M."""
    from matplotlib.ticker import EngFormatter

    axes.xaxis.set_major_formatter(EngFormatter())


def places(axes: Axes, named: Mapping[float, str], is_logarithmic: bool = True) -> None:
    """Give the x axis a tick at each of a few places, with its text."""
    from matplotlib.ticker import FixedLocator, NullLocator

    if is_logarithmic:
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(named)))
    axes.xaxis.set_minor_locator(NullLocator())
    crowded = sum(map(len, named.values())) > TICK_LETTERS
    axes.set_xticklabels(list(named.values()), rotation=45 if crowded else 0, fontsize=8 if crowded else 9)


def fitting_scale(axes: Axes, values: Floats) -> None:
    """Make the y axis logarithmic if the values span a large factor."""
    if len(values) and np.min(values) > 0 and np.max(values) / np.min(values) > LOGARITHMIC_ABOVE:
        axes.set_yscale("log")


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the seconds per unit, and the best unit for a time axis of this length."""
    for unit_s, unit in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if longest_s >= 2 * unit_s:
            return unit_s, unit
    return 1.0, "s"


def dashed(axes: Axes, x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> None:
    """Draw a thin grey reference line: a prediction, an ideal, a bound."""
    axes.plot(x, y, color=GREY, linestyle=(0, (3, 2)), linewidth=1.2)


def plain_logarithm(axes: Axes) -> None:
    """Write a logarithmic y axis in plain numbers, at 1, 2 and 5 of every decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
