"""Converts Arrow columns to NumPy arrays and back, without copying."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raysim.data.field import Field

INDEX_SCHEMA = pa.schema(
    [
        ("client", pa.large_string()),
        ("first_row", pa.int64()),
        ("rows", pa.int64()),
        ("x_crc32", pa.uint32()),
        ("y_crc32", pa.uint32()),
    ]
)
"""A client's id, its rows, and the checksums of their x and y (data/checksums.py)."""


def rows_schema(x: Field, y: Field) -> pa.Schema:
    """Return the schema of a split's rows."""
    return pa.schema([("x", column_type(x)), ("y", column_type(y))])


def column_type(field: Field) -> pa.DataType:
    """Return the type of a number, or for examples with a shape, of a fixed-size list of numbers, row-major.

    Booleans are stored as bytes: Arrow packs eight booleans into a byte, which NumPy cannot view.
    """
    value = _value_type(field)
    return pa.list_(value, field.values) if field.shape else value


def to_column(rows: npt.NDArray[Any], field: Field) -> pa.Array:
    """Return a column over the memory of contiguous rows, (n, *field.shape)."""
    flat = rows.reshape(-1)
    values = pa.Array.from_buffers(_value_type(field), len(flat), [None, pa.py_buffer(flat)])
    return pa.FixedSizeListArray.from_arrays(values, field.values) if field.shape else values


def from_column(column: pa.Array, field: Field) -> npt.NDArray[Any]:
    """Return a read-only view of a whole column, (n, *field.shape)."""
    values = column.values if field.shape else column
    count = len(column) * field.values
    buffer = values.buffers()[1]
    if count == 0:
        return np.empty((0, *field.shape), field.dtype)
    return np.frombuffer(buffer, field.dtype, count).reshape(len(column), *field.shape)


def _value_type(field: Field) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype("uint8" if field.dtype == "bool" else field.dtype))
