"""Tables of several runs as one, in which every row says which run it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa


def tagged(tables: Sequence[tuple[Mapping[str, Any], pa.Table]]) -> pa.Table:
    """All rows, with a column for each tag first; the tags are the same for all tables, and there is one at least.

    Values of a tag that are all numbers, words or booleans stay what they are, others are written as JSON.
    """
    names = list(tables[0][0])
    plain = {name: _of_one_kind([tags[name] for tags, _ in tables]) for name in names}
    parts = []
    for tags, table in tables:
        for place, name in enumerate(names):
            value = tags[name] if plain[name] else json.dumps(tags[name])
            table = table.add_column(place, name, pa.array([value] * table.num_rows, plain[name] or pa.string()))
        parts.append(table)
    return pa.concat_tables(parts, promote_options="default")


def _of_one_kind(values: Sequence[Any]) -> pa.DataType | None:
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return pa.int64() if kinds == {int} else pa.float64()
    if kinds == {bool}:
        return pa.bool_()
    return pa.string() if kinds == {str} else None
