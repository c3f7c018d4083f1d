"""Compares what an experiment left on two trees, bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

PLACEMENT = ("wall_time_s", "idle_fraction", "retries", "workers")
"""Columns that say how the work was carried out; with their means and deviations over trials."""
PLACEMENT_PREFIXES = ("seconds/", "ray_bytes_")


class Record(NamedTuple):
    """What a case left: arrays and tables by name, and the class of what it raised.

    lacks: the keywords that the case passes and the tree does not take, so that it was not run.
    """

    arrays: Mapping[str, npt.NDArray[Any]]
    tables: Mapping[str, pa.Table]
    error: str | None = None
    text: str = ""
    lacks: tuple[str, ...] = ()


def read(folder: Path) -> Record:
    """What runner.py wrote."""
    if (file := folder / "lacks.json").exists():
        return Record({}, {}, lacks=tuple(json.loads(file.read_text())))
    if (file := folder / "error.json").exists():
        error = json.loads(file.read_text())
        return Record({}, {}, error["class"], error["text"])
    with np.load(folder / "params.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    return Record(arrays, {file.stem: pq.read_table(file) for file in sorted(folder.glob("*.parquet"))})


def difference(one: Record, other: Record) -> str | None:
    """The first difference, as a sentence; None where there is none, or where only the one tree cannot run the case."""
    if other.lacks:
        return f"no keyword {', '.join(other.lacks)}"
    if one.lacks:
        return None
    if one.error != other.error:
        return f"raised {_raised(one)}, and {_raised(other)}"
    if found := _names("tensors", list(one.arrays), list(other.arrays)):
        return found
    for name, values in one.arrays.items():
        if found := arrays(values, other.arrays[name]):
            return f"{name}: {found}"
    if found := _names("tables", list(one.tables), list(other.tables)):
        return found
    for name, table in one.tables.items():
        if found := tables(table, other.tables[name]):
            return f"{name}, {found}"
    return None


def said(one: Record, other: Record) -> str:
    """The line of a case whose records are one and other."""
    if found := difference(one, other):
        return f"DIFFERS: {found}"
    if one.lacks:
        return f"new: no keyword {', '.join(one.lacks)}{f'; raises {_raised(other)}' if other.error else ''}"
    return f"same: both raise {one.error}" if one.error else "same"


def tables(one: pa.Table, other: pa.Table) -> str | None:
    """The first difference of two tables, without columns of time and placement; of values before that of columns."""
    names, others = ([name for name in each.column_names if not is_placement(name)] for each in (one, other))
    if len(one) != len(other):
        return f"{len(one)} rows, and {len(other)}"
    for name in (name for name in names if name in others):
        a, b = one[name], other[name]
        if a.type != b.type:
            return f"column {name}: {a.type}, and {b.type}"
        if pa.types.is_floating(a.type):
            # A null is no NaN.
            null = np.asarray(a.is_null()) != np.asarray(b.is_null())
            found = f"null in row {null.argmax()} of one alone" if null.any() else None
            found = found or arrays(a.drop_null().to_numpy(), b.drop_null().to_numpy())
        else:
            found = _values(a.to_pylist(), b.to_pylist())
        if found:
            return f"column {name}: {found}"
    return _names("columns", names, others)


def arrays(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> str | None:
    """The first entry with other bits, and by how much entries differ at most; any NaN is the same as any other."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype} of shape {one.shape}, and {other.dtype} of shape {other.shape}"
    a, b = (np.ascontiguousarray(values).reshape(-1) for values in (one, other))
    differs = (a.view(f"V{a.itemsize}") != b.view(f"V{b.itemsize}")) if a.size else np.zeros(0, bool)
    if np.issubdtype(a.dtype, np.floating):
        differs &= ~(np.isnan(a) & np.isnan(b))
    if not differs.any():
        return None
    first = int(differs.argmax())
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a[differs].astype(np.float64) - b[differs].astype(np.float64))
    return (
        f"{differs.sum()} of {a.size} differ, first [{first}]: {a[first]} and {b[first]}; "
        f"by at most {np.nanmax(apart, initial=0.0):.3g}"
    )


def is_placement(column: str) -> bool:
    """Whether the column says how the work was carried out."""
    return column.startswith(PLACEMENT_PREFIXES) or any(
        column == name or column.startswith(f"{name}/") for name in PLACEMENT
    )


def _values(one: list[Any], other: list[Any]) -> str | None:
    rows = [row for row, (a, b) in enumerate(zip(one, other, strict=True)) if a != b]
    if not rows:
        return None
    a, b = one[rows[0]], other[rows[0]]
    number = isinstance(a, int | float) and isinstance(b, int | float)
    by = f"; by {abs(a - b):.3g}" if number else ""
    return f"{len(rows)} of {len(one)} differ, first in row {rows[0]}: {a} and {b}{by}"


def _names(what: str, one: list[str], other: list[str]) -> str | None:
    """Say what only one side has. Their order is no number."""
    left, new = ([name for name in names if name not in rest] for names, rest in ((one, other), (other, one)))
    return (
        "; ".join(f"{what} {word}: {', '.join(names)}" for word, names in (("gone", left), ("new", new)) if names)
        or None
    )


def _raised(record: Record) -> str:
    return f"{record.error} ({record.text})" if record.error else "nothing"
