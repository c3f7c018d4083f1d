"""Holds the rows of a run, one per round: a growing table that stays small in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

# pyarrow imports it at its first table of Python's values, and drops a Ctrl-C there as if the package were absent.
import dateutil.relativedelta  # noqa: F401
import pyarrow as pa

from raysim.experiment.row import Row


class Rows(Sequence[Row]):
    """Rows in order of rounds; may be read by other threads while it grows.

    Packed rows take a tenth of the memory of mappings. A packed row has None for an absent key.

    >>> rows = Rows([{"round": 0, "loss": 2.0}])
    >>> rows.append({"round": 1})
    >>> len(rows), rows[-1], rows.packed()["loss"].to_pylist()
    (2, {'round': 1}, [2.0, None])

    A column's type follows from its values, and not from when rows were packed.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        # Both are replaced at once: a reader has the old pair, or the new one.
        self._parts: tuple[pa.Table, list[Row]] = (table([]), list(rows))

    def append(self, row: Row) -> None:
        """Add the next round's row."""
        self._parts[1].append(row)

    def packed(self) -> pa.Table:
        """Pack the rows so far; returns all rows as a table."""
        before, new = self._parts
        if new:
            # A column's first values may all be whole numbers, or absent.
            parts = [_without_types_of_nothing(part) for part in (before, table(new)) if len(part)]
            every = pa.concat_tables(parts, promote_options="permissive")
            self._parts = (_with_types(every).combine_chunks(), [])
        return self._parts[0]

    def __len__(self) -> int:
        before, new = self._parts
        return len(before) + len(new)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        before, new = self._parts
        if isinstance(index, int):
            return self[range(len(self))[index] :][0]
        start, stop, step = index.indices(len(before) + len(new))
        assert step == 1
        at = len(before)
        return [
            *before.slice(start, max(0, min(stop, at) - start)).to_pylist(),
            *new[max(0, start - at) : max(0, stop - at)],
        ]


def table(rows: Sequence[Row]) -> pa.Table:
    """Return rows as a table whose columns are all keys, in order of first appearance; absent values are null.

    >>> table([{"round": 0}, {"round": 1, "loss": 0.5}]).to_pydict()
    {'round': [0, 1], 'loss': [None, 0.5]}
    """
    names = dict.fromkeys(key for row in rows for key in row)
    names.setdefault("round")
    columns = {name: [row.get(name) for row in rows] for name in names}
    ids = pa.list_(pa.string())
    types = {
        "round": pa.int64(),
        "rejected_clients": ids,
        "catastrophic_cohort": ids,
        "catastrophic_failure": pa.bool_(),
    }
    for name, values in columns.items():
        if all(value is None for value in values):
            # A figure that no round has yet: the column is one of figures all the same.
            types.setdefault(name, pa.float64())
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def _without_types_of_nothing(rows: pa.Table) -> pa.Table:
    """Leave the type of figures that no row has to the rows that follow: they may be whole numbers."""
    return _retyped(rows, lambda column: column.type == pa.float64() and column.null_count == len(column), pa.null())


def _with_types(rows: pa.Table) -> pa.Table:
    """Return the rows with the columns of `table`: a figure that no row has is one all the same."""
    return _retyped(rows, lambda column: pa.types.is_null(column.type), pa.float64())


def _retyped(rows: pa.Table, which: Callable[[pa.ChunkedArray], bool], to: pa.DataType) -> pa.Table:
    for place, name in enumerate(rows.column_names):
        if which(column := rows.column(place)):
            rows = rows.set_column(place, name, pa.nulls(len(column), to))
    return rows
