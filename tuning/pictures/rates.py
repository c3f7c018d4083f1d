"""Draws the numbers of every member over the rounds, in the members that raysim evolve has trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raysim.report.gallery.figure import Figure, Panel
from raysim.report.looks import GREY, nth
from tuning.objective import Objective
from tuning.writing import figure as written

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADE = 10
"""Numbers of this ratio are drawn on a logarithmic axis."""


def figure(name: str, table: pa.Table, keys: Sequence[str], objective: Objective, lineage: Sequence[int]) -> Figure:
    """Return the picture: a panel for each key, a line for each member, and the way of the best one in colour.

    Args:
        table: see `Evolution`. lineage: the best one's member in each generation.
    """
    rows = table.to_pylist()
    of = {(row["generation"], row["member"]): row for row in rows}
    best = of[len(lineage) - 1, lineage[-1]]
    data = table.append_column("group", pa.array([f"member {row['member']}" for row in rows]))
    return Figure(
        "rates",
        f"{name}: numbers of the members over the rounds",
        f"A line for each member; in colour the way of the one with {written(objective, best['value'])} "
        f"{objective.label}, through those whose state was copied.",
        data.select(["group", *table.column_names]),
        tuple(Panel(key, partial(_draw, of, lineage, key)) for key in keys),
        shares_y=False,
    )


def _draw(of: Mapping[tuple[int, int], Mapping[str, Any]], lineage: Sequence[int], key: str, axes: Axes) -> None:
    generations, members = range(len(lineage)), 1 + max(member for _, member in of)
    ends = [0, *(of[generation, 0]["rounds"] for generation in generations)]
    grey: dict[str, Any] = {"color": GREY, "linewidth": 0.8}
    ways = [([of[generation, member][key] for generation in generations], grey) for member in range(members)]
    ways.append(([of[generation, lineage[generation]][key] for generation in generations], nth(0).line("the best")))
    # A member has the numbers of its generation from the end of the one before to its own end.
    for values, look in ways:
        axes.step(ends, [values[0], *values], where="pre", **look)
    every = [row[key] for row in of.values()]
    if min(every) > 0 and max(every) >= DECADE * min(every):
        axes.set_yscale("log")
    axes.set_xlabel("rounds")
