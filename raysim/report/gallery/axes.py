"""Writes the ticks of all figures' axes: shares, names, rounds, counts and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from raysim.arrays import Float64s
from raysim.report.gallery.text_room import broken, letter_in, width_in
from raysim.report.looks import LOGARITHMIC_ABOVE
from raysim.report.number_formats import share, tick

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

ROW_TICKS, NARROW_IN = 4, 4.0
NAMES_PART = 0.42
"""Of a picture's width, what the names of its rows may take."""
SHORT = 6.0
"""A logarithmic axis that spans a smaller factor has a tick at even distances."""
LONG = 1000.0
"""One that spans a larger factor has ticks at decades only: at 1, 2 and 5 of each they would touch."""
TICK_EM = 0.65
"""Width of a tick's letter in sizes of one. Texts below an axis that do not fit its figure's width are turned."""


def shares(axes: Axes, which: str = "y") -> None:
    """Write an axis's ticks in percent."""
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_formatter(lambda fraction, _: tick(fraction))


def rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of a picture, from height len(names) - 1 down to 0; long names are broken."""
    from matplotlib.ticker import MaxNLocator

    # Names leave little width for the figures below.
    axes.xaxis.set_major_locator(MaxNLocator(ROW_TICKS if width_in(axes) > NARROW_IN else ROW_TICKS - 1))
    shown = [broken(name, NAMES_PART * width_in(axes) / letter_in()) for name in names]
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
    needed_in = TICK_EM * sum(len(name) + 1 for name in named.values()) * letter_in()
    room_in = axes.get_position().width * width_in(axes)
    axes.set_xticklabels(list(named.values()), rotation=45 if needed_in > room_in else 0)


def fitting_scale(axes: Axes, values: Float64s) -> None:
    """Make the y axis logarithmic if the values span a large factor."""
    if len(values) and np.min(values) > 0 and np.max(values) / np.min(values) > LOGARITHMIC_ABOVE:
        axes.set_yscale("log")
        plain_logarithm(axes)


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the seconds per unit, and the best unit for a time axis of this length."""
    for unit_s, unit in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if longest_s >= 2 * unit_s:
            return unit_s, unit
    return 1.0, "s"


def plain_logarithm(axes: Axes) -> None:
    """Write a logarithmic y axis in plain numbers: at 1, 2 and 5 of every decade, or at decades if it is long.

    A short one has ticks as any other axis.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axes.get_ylim()
    subs = (1.0, 2.0, 5.0) if high <= LONG * low else (1.0,)
    axes.yaxis.set_major_locator(MaxNLocator(5) if high < SHORT * low else LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


BAR_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Places of a colour bar's ticks, from its lower to its upper end."""


def colour_bar(axes: Axes, coloured: ScalarMappable, scale: Normalize, label: str, is_share: bool) -> None:
    """Add a bar of colours beside axes, its ticks as those of an axis."""
    bar = axes.figure.colorbar(coloured, ax=axes, label=label, fraction=0.06, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.grid(False)
    if is_share:
        # Even in colour: where the scale is bent, round values would lie on top of each other.
        values = [float(scale.inverse(part)) for part in BAR_TICKS]
        bar.set_ticks(values, labels=[share(value) if value >= 0 else "" for value in values])
    elif bar.ax.get_yscale() == "log":
        plain_logarithm(bar.ax)
