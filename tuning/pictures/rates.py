"""Draws the numbers of every member over the rounds, in the members that raysim evolve has trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raysim.report.gallery.figure import Figure, Panel
from raysim.report.looks import GREY, CurveStyle, nth
from tuning.objective import Objective
from tuning.pictures.values import over_rounds
from tuning.writing import figure as written

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DECADE = 10
"""Numbers of this ratio are drawn on a logarithmic axis."""
OTHERS = CurveStyle(GREY, is_named=False)


def figure(name: str, table: pa.Table, keys: Sequence[str], objective: Objective, lineage: Sequence[int]) -> Figure:
    """Return the picture: a panel for each key, a line for each member, and the way of the best one in colour.

    Args:
        name: of the experiment.
        table: see `Evolution`.
        keys: those that members change.
        objective: of the study.
        lineage: the best one's member in each generation.
    """
    rows = table.to_pylist()
    last = next(row for row in rows if (row["generation"], row["member"]) == (len(lineage) - 1, lineage[-1]))
    members = 1 + max(row["member"] for row in rows)
    return Figure(
        "rates",
        f"{name}: the numbers of {members} members",
        f"In colour that with {written(objective, last['value'])} {objective.label}.",
        table,
        tuple(Panel("", partial(_draw, rows, key, lineage)) for key in keys),
        shares_y=False,
    )


def _draw(rows: Sequence[Mapping[str, Any]], key: str, lineage: Sequence[int], axes: Axes) -> None:
    of = {(row["generation"], row["member"]): row[key] for row in rows}
    ends = [0, *sorted({row["rounds"] for row in rows})]
    generations = range(len(ends) - 1)
    # A member has the values of its generation from the end of the one before to its own end.
    ways = [([of[g, member] for g in generations], OTHERS) for member in sorted({row["member"] for row in rows})]
    ways.append(([of[g, member] for g, member in enumerate(lineage)], nth(0)))
    for values, look in ways:
        axes.step(ends, [values[0], *values], where="pre", **look.line(len(ends)))
    if min(of.values()) > 0 and max(of.values()) >= DECADE * min(of.values()):
        axes.set_yscale("log")
    over_rounds(axes)
    axes.set_ylabel(key)
