"""Draws heat maps of the final accuracy, or loss, over any two keys that differ among the groups."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial

from raysim.report import number_formats
from raysim.report.column_names import is_share, spoken
from raysim.report.gallery import cells
from raysim.report.gallery.cells import Cells, ColourMeaning
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group, headline

ROW_IN = 0.34


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for every pair of keys with at least two values each, up to `cells.MOST_MAPS`."""
    column = headline(groups)
    is_loss = column.endswith("loss")

    def final(group: Group) -> float | None:
        found = group.finals(column)
        return statistics.fmean(found) if found else None

    for found in cells.over_pairs(groups, final, larger_is_better=not is_loss):
        what = spoken(column)
        meaning = ColourMeaning(what, is_share(column), larger_is_better=not is_loss)
        yield Figure(
            f"heat-map-{found.row_key}-{found.column_key}",
            f"{what.capitalize()} over {found.row_key} and {found.column_key}",
            f"The newest value of each run; {over(found)}. Empty cells were not run.",
            found.table(what, mean=found.amounts.ravel().tolist()),
            partial(cells.draw, found, partial(_text, found, is_loss), meaning),
            height_in=1.3 + ROW_IN * len(found.rows),
        )


def over(found: Cells) -> str:
    """Return what a cell with several groups shows."""
    return "where other keys differ too, the best over them" if found.has_several else "mean over trials"


def _text(found: Cells, is_loss: bool, cell: tuple[int, int]) -> str:
    value = float(found.amounts[cell])
    return (number_formats.loss(value) if is_loss else number_formats.share(value)) if value == value else ""
