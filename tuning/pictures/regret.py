"""Draws what the choice of the best configuration costs, against the number of validation clients that choose."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.report.gallery.figure import Figure
from raysim.report.looks import nth
from tuning.pictures.values import write_values
from tuning.result import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def figure(study: Study) -> Figure | None:
    """Return the picture of the regret by bootstrap; None if it is not known for two numbers of clients."""
    if len(study.regret) < 2:
        return None
    return Figure(
        "regret",
        f"{study.name}: regret of the choice by {study.objective.label}",
        "The mean over samples of clients, and where 95 % of them lie below.",
        pa.table(
            {
                "group": [study.name] * len(study.regret),
                "clients": [one.clients for one in study.regret],
                "mean": [one.mean for one in study.regret],
                "high": [one.high for one in study.regret],
            }
        ),
        partial(_draw, study),
    )


def _draw(study: Study, axes: Axes) -> None:
    from matplotlib.ticker import NullLocator

    look, clients = nth(0), [one.clients for one in study.regret]
    axes.fill_between(clients, 0, [one.high for one in study.regret], color=look.colour, alpha=0.2, linewidth=0)
    axes.plot(clients, [one.mean for one in study.regret], **look.points())
    axes.set_xscale("log")
    axes.set_xticks(clients, [f"{number:,}" for number in clients])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("validation clients")
    write_values(axes, study.objective.is_share, f"regret in {study.objective.label}, mean and 95 %")
