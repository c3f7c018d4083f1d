"""What figures of clients' accuracies have in common: which are read, and a line in steps for each group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from raysim.report.gallery import axes as ticks
from raysim.report.groups import Group
from raysim.report.series import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def scored(clients: pa.Table, split: str) -> pa.Table:
    """The rows of a split's clients whose accuracy is known."""
    return clients.filter(pc.and_(pc.equal(clients["split"], split), pc.is_finite(clients["accuracy"])))


def steps(axes: Axes, group: Group, x: Floats, y: Floats, where: Literal["mid", "post"]) -> None:
    """One group's line in its look; shares on both axes."""
    look = group.look
    axes.step(x, y, where=where, color=look.colour, linestyle=look.dash, linewidth=look.width, label=group.legend)
    ticks.shares(axes)
    ticks.shares(axes, "x")
