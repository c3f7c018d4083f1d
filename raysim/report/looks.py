"""How groups of runs are told apart in pictures: a colour and a dash each, the same in every picture of a report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from raysim.report.palette import GREY, SERIES

NAMED = 2 * len(SERIES)
"""More groups than this cannot be told apart: then only the best are coloured and named."""


class Look(NamedTuple):
    """`is_named`: in legends, and with a band of deviations; the others are thin and grey, to show the field."""

    colour: str
    dash: Literal["-", "--"] = "-"
    is_named: bool = True

    @property
    def width(self) -> float:
        """Of lines, in points."""
        return 1.6 if self.is_named else 0.6


def looks(scores: Iterable[float]) -> list[Look]:
    """A look for each group, by how good it is (the larger the better)."""
    given = list(scores)
    if len(given) <= NAMED:
        return [Look(SERIES[i % len(SERIES)], "-" if i < len(SERIES) else "--") for i in range(len(given))]
    best = sorted(range(len(given)), key=lambda i: -given[i])[: len(SERIES)]
    return [Look(SERIES[best.index(i)]) if i in best else Look(GREY, "-", False) for i in range(len(given))]
