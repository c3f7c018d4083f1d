"""Opens the two files of a split and checks their form: what a flipped bit or a stranger makes of it is not mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raysim.arrays import Int64s
from raysim.data.columns import INDEX_SCHEMA, from_column, rows_schema
from raysim.data.field import Field
from raysim.data.manifest import Manifest, SplitFiles
from raysim.errors import DataError
from raysim.storage import arrow_file
from raysim.storage.reading import parsing

_NUMBER = Field((), "int64")
_CRC = Field((), "uint32")


class SplitIndex(NamedTuple):
    """Each client's id, first row and number of rows, in order of position.

    crcs: uint32, of each client's rows of x, and of y.
    """

    ids: pa.Array
    first_rows: Int64s
    sizes: Int64s
    crcs: tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32]]


def opened_rows(path: Path, manifest: Manifest, files: SplitFiles) -> pa.RecordBatchFileReader:
    """Map a split's rows.

    Raises:
        DataError: the file is damaged, or has another number of record batches than its description says.
    """
    reader = _opened(path, lambda: rows_schema(manifest.x, manifest.y))
    expected = -(-files.rows // files.batch_rows)
    if reader.num_record_batches != expected:
        raise DataError(f"{path} is damaged: expected {expected} record batches, found {reader.num_record_batches}")
    return reader


def rows_of_batch(
    path: Path, reader: pa.RecordBatchFileReader, number: int, manifest: Manifest, files: SplitFiles
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return views of x and y of a record batch.

    Raises:
        DataError: the batch is damaged, or has another number of rows than its place asks for.
    """
    with parsing(path, f"a whole record batch {number}", DataError):
        batch = reader.get_batch(number)
        batch.validate()
        if batch.num_rows != (rows := min(files.batch_rows, files.rows - number * files.batch_rows)):
            raise ValueError(f"it has {batch.num_rows} rows, not {rows}")
        if any(column.null_count for column in batch.columns):
            raise ValueError("it has nulls")
        return from_column(batch.column(0), manifest.x), from_column(batch.column(1), manifest.y)


def read_index(path: Path, files: SplitFiles) -> SplitIndex:
    """Read a split's index, in which each client begins where the one before ends.

    Raises:
        DataError: the file is damaged, or differs from the description.
    """
    reader = _opened(path, lambda: INDEX_SCHEMA)
    with parsing(path, "an index of clients", DataError):
        if reader.num_record_batches != 1:
            raise ValueError(f"it has {reader.num_record_batches} record batches")
        batch = reader.get_batch(0)
        batch.validate(full=True)
        if batch.num_rows != files.clients or any(column.null_count for column in batch.columns):
            raise ValueError(f"it has {batch.num_rows} clients or nulls, and {files.clients} clients are described")
        first_rows, sizes = (from_column(batch.column(place), _NUMBER) for place in (1, 2))
        ends = np.cumsum(sizes)
        if (sizes < 0).any() or (sizes > files.rows).any() or not np.array_equal(first_rows, ends - sizes):
            raise ValueError("its clients do not follow each other")
        if ends[-1] != files.rows:
            raise ValueError(f"it has {ends[-1]} rows, and {files.rows} are described")
        of_x, of_y = (from_column(batch.column(place), _CRC) for place in (3, 4))
    return SplitIndex(batch.column(0), first_rows, sizes, (of_x, of_y))


def _opened(path: Path, schema: Any) -> pa.RecordBatchFileReader:
    reader = arrow_file.opened(path, DataError, packed=False)
    with parsing(path, "an Arrow file", DataError):
        expected = schema()
    if not reader.schema.equals(expected):
        raise DataError(
            f"{path} is damaged: expected columns {expected.to_string()}, found {reader.schema.to_string()}"
        )
    return reader
