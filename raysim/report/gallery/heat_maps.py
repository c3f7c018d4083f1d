"""Draws heat maps of the final accuracy, or loss, over any two keys that differ among the groups."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.report import figures
from raysim.report.figures import spoken
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group, headline, written
from raysim.report.looks import HEAT, PAPER, readable_on
from raysim.report.series import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_CELLS = 4
"""A map needs at least this number of cells with a value."""
MOST_MAPS = 10
"""The pairs of five keys."""
LABELLED_CELLS = 64
"""With more cells there is no room for their values."""


class _Map(NamedTuple):
    """`values`: (rows, columns), the best group of each cell; NaN if there is none."""

    row_key: str
    column_key: str
    rows: list[str]
    columns: list[str]
    values: Floats


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for every pair of keys with at least two values each, up to MOST_MAPS."""
    column = headline(groups)
    keys = dict.fromkeys(key for group in groups for key in group.keys)
    swept = [key for key in keys if len({written(group.keys[key]) for group in groups if key in group.keys}) > 1]
    num_maps = 0
    for row_key, column_key in itertools.combinations(swept, 2):
        found = _map(groups, row_key, column_key, column)
        if np.isfinite(found.values).sum() < LEAST_CELLS or num_maps == MOST_MAPS:
            continue
        num_maps += 1
        what = spoken(column)
        best = "if other keys differ too, the best over them" if len(swept) > 2 else "mean over trials"
        data = pa.table(
            {
                "group": [what] * found.values.size,
                row_key: [row for row in found.rows for _ in found.columns],
                column_key: [name for _ in found.rows for name in found.columns],
                "mean": pa.array(found.values.ravel(), from_pandas=True),
            }
        )
        yield Figure(
            f"heat-map-{row_key}-{column_key}",
            f"{what.capitalize()} over {row_key} and {column_key}",
            f"The newest value of each run; {best}. Empty cells were not run.",
            data,
            partial(_draw, found, column),
            height_in=1.3 + 0.34 * len(found.rows),
        )


def _map(groups: Sequence[Group], row_key: str, column_key: str, column: str) -> _Map:
    having = [group for group in groups if row_key in group.keys and column_key in group.keys]
    rows, columns = _values(having, row_key), _values(having, column_key)
    values = np.full((len(rows), len(columns)), np.nan)
    better = np.fmin if column.endswith("loss") else np.fmax
    for group in having:
        if finals := group.finals(column):
            cell = rows.index(written(group.keys[row_key])), columns.index(written(group.keys[column_key]))
            values[cell] = better(values[cell], statistics.fmean(finals))
    return _Map(row_key, column_key, rows, columns, values)


def _values(groups: Sequence[Group], key: str) -> list[str]:
    """Return a key's values as text, numbers first, in order."""
    values: dict[str, Any] = {written(group.keys[key]): group.keys[key] for group in groups}
    is_number = {name: isinstance(value, int | float) for name, value in values.items()}
    return sorted(values, key=lambda name: (not is_number[name], values[name] if is_number[name] else 0))


def _draw(found: _Map, column: str, axes: Axes) -> None:
    import matplotlib

    is_share = column.endswith("accuracy")
    # A better value is lighter, whether that is a larger accuracy or a smaller loss.
    colours = matplotlib.colormaps[HEAT if is_share else f"{HEAT}_r"]
    low, high = float(np.nanmin(found.values)), float(np.nanmax(found.values))
    mesh = axes.pcolormesh(found.values, cmap=colours, vmin=low, vmax=high, edgecolors=PAPER, linewidth=1)
    span = high - low or 1.0
    axes.set_xticks(np.arange(len(found.columns)) + 0.5, found.columns)
    axes.set_yticks(np.arange(len(found.rows)) + 0.5, found.rows)
    axes.set_xlabel(found.column_key)
    axes.set_ylabel(found.row_key)
    axes.grid(False)
    if found.values.size > LABELLED_CELLS:
        axes.figure.colorbar(mesh, ax=axes)
        return
    write = figures.share if is_share else figures.loss
    for (row, place), value in np.ndenumerate(found.values):
        if np.isfinite(value):
            red, green, blue, _ = colours((value - low) / span)
            ink = readable_on(red, green, blue)
            axes.text(place + 0.5, row + 0.5, write(value), ha="center", va="center", color=ink, fontsize=8)
