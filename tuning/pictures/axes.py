"""How rounds and an objective's values are written on axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.report.palette import INK
from tuning.objective import Objective
from tuning.writing import figure as written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def over_rounds(axes: Axes) -> None:
    """Rounds from left to right, in whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rounds", color=INK)
    axes.margins(x=0.01)


def write_values(axis: object, objective: Objective) -> None:
    """Ticks of a matplotlib axis as the objective's values are written."""
    from matplotlib.ticker import FuncFormatter, PercentFormatter

    if objective.is_share:
        axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))  # type: ignore[attr-defined]
    else:
        axis.set_major_formatter(FuncFormatter(lambda value, _: written(objective, value)))  # type: ignore[attr-defined]
