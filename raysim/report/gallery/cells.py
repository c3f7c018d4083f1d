"""Lays groups out over two keys and draws a figure of each cell, for heat maps."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.arrays import Float64s
from raysim.report.gallery import axes as ticks
from raysim.report.gallery.lanes import values
from raysim.report.groups import Group, written
from raysim.report.looks import FAINT, HEAT, INK, PAPER, heat_scale, readable_on

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_CELLS = 4
"""A map needs at least this number of cells that were run."""
MOST_MAPS = 10
"""The pairs of five keys."""
LABELLED_CELLS = 64
"""With more cells there is no room for their values."""


class Cells(NamedTuple):
    """`amounts`: (rows, columns), the best group of each cell; NaN if it has none. `groups`: those of each cell.

    `names`: see `with_labels`.
    """

    row_key: str
    column_key: str
    rows: list[str]
    columns: list[str]
    amounts: Float64s
    groups: dict[tuple[int, int], list[Group]]
    names: Mapping[str, str]

    @property
    def has_several(self) -> bool:
        """Whether a cell has several groups, of which it shows the best."""
        return any(len(groups) > 1 for groups in self.groups.values())

    def table(self, what: str, **columns: Sequence[float | None]) -> pa.Table:
        """Return one row per cell: the keys' values, and these columns; `what` is its group."""
        return pa.table(
            {
                "group": [what] * self.amounts.size,
                self.row_key: [row for row in self.rows for _ in self.columns],
                self.column_key: [name for _ in self.rows for name in self.columns],
                **{name: pa.array(found, pa.float64(), from_pandas=True) for name, found in columns.items()},
            }
        )


def over_pairs(
    groups: Sequence[Group], amount: Callable[[Group], float | None], larger_is_better: bool
) -> Iterator[Cells]:
    """Yield a grid for every pair of keys with enough cells, up to MOST_MAPS; `amount` is a group's figure."""
    found = [(group, amount(group)) for group in groups]
    keys = [key for key in dict.fromkeys(key for group in groups for key in group.keys) if len(values(groups, key)) > 1]
    grids = (_grid(found, *pair, np.fmax if larger_is_better else np.fmin) for pair in itertools.combinations(keys, 2))
    full = (grid for grid in grids if len(grid.groups) >= LEAST_CELLS and np.isfinite(grid.amounts).any())
    yield from itertools.islice(full, MOST_MAPS)


def _grid(found: Sequence[tuple[Group, float | None]], row_key: str, column_key: str, better: np.ufunc) -> Cells:
    having = [(group, amount) for group, amount in found if row_key in group.keys and column_key in group.keys]
    rows, columns = (list(values([group for group, _ in having], key)) for key in (row_key, column_key))
    amounts = np.full((len(rows), len(columns)), np.nan)
    cells: dict[tuple[int, int], list[Group]] = {}
    for group, amount in having:
        cell = rows.index(written(group.keys[row_key])), columns.index(written(group.keys[column_key]))
        cells.setdefault(cell, []).append(group)
        if amount is not None:
            amounts[cell] = better(amounts[cell], amount)
    return Cells(row_key, column_key, rows, columns, amounts, cells, having[0][0].names)


class ColourMeaning(NamedTuple):
    """What the colours of a map say: `label` of their bar; lighter is better."""

    label: str
    is_share: bool
    larger_is_better: bool


def draw(grid: Cells, text: Callable[[tuple[int, int]], str], shades: ColourMeaning, axes: Axes) -> None:
    """Draw the cells, lighter where they are better, each with its text unless there are many; and a bar of colours.

    Cells that were run but have no amount are grey.
    """
    import matplotlib

    colours = matplotlib.colormaps[HEAT if shades.larger_is_better else f"{HEAT}_r"]
    scale = heat_scale(grid.amounts[np.isfinite(grid.amounts)].tolist(), shades.is_share)
    mesh = axes.pcolormesh(grid.amounts, cmap=colours, norm=scale, edgecolors=PAPER, linewidth=1)
    missed = np.full(grid.amounts.shape, np.nan)
    for cell in grid.groups:
        if not np.isfinite(grid.amounts[cell]):
            missed[cell] = 0.0
    if np.isfinite(missed).any():
        axes.pcolormesh(missed, cmap=matplotlib.colors.ListedColormap([FAINT]), edgecolors=PAPER, linewidth=1)
    axes.set_xticks(np.arange(len(grid.columns)) + 0.5, grid.columns)
    axes.set_yticks(np.arange(len(grid.rows)) + 0.5, grid.rows)
    axes.set_xlabel(grid.names.get(grid.column_key, grid.column_key))
    axes.set_ylabel(grid.names.get(grid.row_key, grid.row_key))
    axes.grid(False)
    ticks.colour_bar(axes, mesh, scale, shades.label, shades.is_share)
    for row, place in grid.groups if grid.amounts.size <= LABELLED_CELLS else ():
        value = grid.amounts[row, place]
        ink = readable_on(*colours(scale(value))[:3]) if np.isfinite(value) else INK
        axes.text(place + 0.5, row + 0.5, text((row, place)), ha="center", va="center", color=ink, fontsize="small")
