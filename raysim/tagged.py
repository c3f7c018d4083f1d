"""Tables of several runs as one, in which every row says which run it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa


def tagged(tables: Sequence[tuple[Mapping[str, Any], pa.Table]]) -> pa.Table:
    """All rows, with a column for each tag first; the tags are the same for all tables, and there is one at least.

    A tag's column is as `column` makes it.
    """
    columns = {name: column([tags[name] for tags, _ in tables]) for name in tables[0][0]}
    parts = []
    for index, (_, table) in enumerate(tables):
        for place, (name, values) in enumerate(columns.items()):
            table = table.add_column(place, name, pa.repeat(values[index], table.num_rows))
        parts.append(table)
    return pa.concat_tables(parts, promote_options="default")


def column(values: Sequence[Any]) -> pa.Array:
    """Values that are all numbers, words or booleans as they are, others written as JSON."""
    kind = _of_one_kind(values)
    return pa.array(values, kind) if kind else pa.array([json.dumps(value) for value in values], pa.string())


def _of_one_kind(values: Sequence[Any]) -> pa.DataType | None:
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return pa.int64() if kinds == {int} else pa.float64()
    if kinds == {bool}:
        return pa.bool_()
    return pa.string() if kinds == {str} else None
