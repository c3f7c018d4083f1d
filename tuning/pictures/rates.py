"""Draws the numbers of every member over the rounds, in the members that raysim evolve has trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.report.looks import GREY, INK, SERIES, plain
from tuning.objective import Objective
from tuning.writing import figure as written

if TYPE_CHECKING:
    from matplotlib.figure import Figure


DECADE = 10
"""Numbers of this ratio are drawn on a logarithmic axis."""


def figure(name: str, table: pa.Table, keys: Sequence[str], objective: Objective, lineage: Sequence[int]) -> Figure:
    """Return the picture: a panel for each key, a line for each member, and the way of the best one in colour.

    Args:
        table: see `Evolution`. lineage: the best one's member in each generation.
    """
    from matplotlib.figure import Figure

    rows = table.to_pylist()
    of = {(row["generation"], row["member"]): row for row in rows}
    ends = [0, *sorted({row["rounds"] for row in rows})]
    members = range(1 + max(row["member"] for row in rows))
    picture = Figure(figsize=(8.4, 1.0 + 2.4 * len(keys)), dpi=150, layout="constrained")
    panels = picture.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
    for panel, key in zip(panels, keys, strict=True):
        plain(panel)
        # A member has the values of its generation from the end of the one before to its own end.
        ways = [([of[g, member][key] for g in range(len(ends) - 1)], GREY, 1.0) for member in members]
        ways.append(([of[g, member][key] for g, member in enumerate(lineage)], SERIES[0], 2.5))
        for values, colour, width in ways:
            panel.step(ends, [values[0], *values], where="pre", color=colour, linewidth=width)
        every = [row[key] for row in rows]
        if min(every) > 0 and max(every) >= DECADE * min(every):
            panel.set_yscale("log")
        panel.set_ylabel(key, color=INK)
    panels[-1].set_xlabel("rounds", color=INK)
    value = of[len(ends) - 2, lineage[-1]]["value"]
    title = f"{name}: {len(members)} members; in colour that with {written(objective, value)} {objective.label}"
    panels[0].set_title(title, loc="left", fontsize=12, color=INK)
    return picture
