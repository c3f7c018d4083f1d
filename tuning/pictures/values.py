"""Formats the values of an objective in pictures: ticks of axes, and colours in which light is good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysim.report.looks import HEAT, INK, SERIES, readable_on
from tuning.objective import Objective
from tuning.writing import figure as written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def over_rounds(axes: Axes) -> None:
    """Set up an x axis of whole rounds."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rounds", color=INK)
    axes.margins(x=0.01)


def write_values(axis: object, objective: Objective) -> None:
    """Format the ticks of a matplotlib axis as the objective's values."""
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    if objective.is_share:
        axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))  # type: ignore[attr-defined]
    else:
        axis.set_major_formatter(FuncFormatter(lambda value, _: written(objective, value)))  # type: ignore[attr-defined]


BEST = SERIES[1]
"""Colour of the mark at the best value; it is no colour of the map."""


@dataclass(frozen=True)
class Colours:
    """A colour map of matplotlib, and the values at its ends."""

    name: str
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], objective: Objective) -> Colours:
        """Return colours that span the better half of the values, so that bad outliers do not hide differences."""
        middle = float(np.median(values))
        if objective.is_maximised:
            return cls(HEAT, min(middle, max(values) - 0.05), max(values))
        return cls(f"{HEAT}_r", min(values), max(middle, 1.05 * min(values) + 1e-9))

    def ink(self, value: float) -> str:
        """Return a text colour that is readable on a value's colour."""
        import matplotlib

        red, green, blue, _ = matplotlib.colormaps[self.name]((value - self.low) / (self.high - self.low))
        return readable_on(red, green, blue)
