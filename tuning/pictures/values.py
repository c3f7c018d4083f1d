"""Formats the values of an objective in pictures: ticks of axes, and colours in which light is good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from raysim.report.gallery import axes as ticks
from raysim.report.looks import HEAT, SERIES, heat_scale, readable_on
from raysim.report.number_formats import loss
from tuning.objective import Objective

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize


def over_rounds(axes: Axes) -> None:
    """Set up an x axis of whole rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("finished rounds")
    axes.margins(x=0.02)


def write_values(axes: Axes, is_share: bool, label: str, which: Literal["x", "y"] = "y") -> None:
    """Label an axis, and format its ticks as shares or losses."""
    from matplotlib.ticker import FuncFormatter

    axes.set(**{f"{which}label": label})
    if is_share:
        ticks.shares(axes, which)
    else:
        getattr(axes, f"{which}axis").set_major_formatter(FuncFormatter(lambda value, _: loss(value)))


BEST = SERIES[1]
"""Colour of the mark at the best value; it is not a colour of the map."""


class Shades(NamedTuple):
    """A colour map of matplotlib, and the scale of values on it."""

    colours: Colormap
    scale: Normalize

    @classmethod
    def of(cls, values: Sequence[float], objective: Objective) -> Shades:
        """Return colours that span all values."""
        import matplotlib

        name = HEAT if objective.is_maximised else f"{HEAT}_r"
        return cls(matplotlib.colormaps[name], heat_scale(values, objective.is_share))

    def ink(self, value: float) -> str:
        """Return a text colour that is readable on a value's colour."""
        return readable_on(*self.colours(self.scale(value))[:3])
