"""Draws what the choice of the best configuration costs, against the number of validation clients that choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.report.looks import INK, SERIES, plain
from tuning.objective import Objective
from tuning.pictures.values import write_values
from tuning.result import Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure(study: Study) -> Figure | None:
    """Return the picture of the regret by bootstrap; None if it is not known for two numbers of clients."""
    if len(study.regret) < 2:
        return None
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    picture = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = picture.add_subplot()
    plain(axes)
    clients = [one.clients for one in study.regret]
    axes.fill_between(clients, 0, [one.high for one in study.regret], color=SERIES[0], alpha=0.2, linewidth=0)
    axes.plot(clients, [one.mean for one in study.regret], color=SERIES[0], linewidth=2, marker="o")
    axes.set_xscale("log")
    axes.set_xticks(clients, [f"{number:,}" for number in clients])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("validation clients", color=INK)
    write_values(axes.yaxis, Objective() if study.objective.is_share else Objective(name="loss"))
    axes.set_title(
        f"{study.name}: regret of the choice, its mean and 95 %, by {study.objective.label}",
        loc="left",
        fontsize=12,
        color=INK,
    )
    return picture
