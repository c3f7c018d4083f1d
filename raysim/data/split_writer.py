"""Writes one split of a dataset's folder: a batch of rows is in memory, the rest on disk."""

from __future__ import annotations

import os
from array import array
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raysim.data import checksums
from raysim.data.columns import INDEX_SCHEMA, rows_schema, to_column
from raysim.data.field import Field
from raysim.data.fingerprint import SplitDigest
from raysim.data.manifest import SplitFiles, data_file, index_file
from raysim.errors import DataError
from raysim.storage.cache import checksum


class SplitWriter:
    """Appends rows, already checked against the fields, to `<split>.arrow`; `finish` writes the index."""

    def __init__(self, folder: Path, split: str, x: Field, y: Field, batch_rows: int) -> None:
        """Create the split's files in `folder`; record batches have `batch_rows` rows."""
        self.digest = SplitDigest()
        self._folder, self._split = folder, split
        self._x, self._y, self._schema = x, y, rows_schema(x, y)
        self._file: BinaryIO = (folder / data_file(split)).open("wb")
        self._sink = pa.ipc.new_file(self._file, self._schema)
        self._batch_x = np.empty((batch_rows, *x.shape), x.dtype)
        self._batch_y = np.empty((batch_rows, *y.shape), y.dtype)
        self._filled = 0
        self._positions: dict[str, int] = {}
        self._sizes = array("q")
        self._x_crcs, self._y_crcs = array("I"), array("I")
        self._current: str | None = None

    @property
    def buffered_rows(self) -> int:
        """Rows in memory; fewer than a record batch."""
        return self._filled

    def write(self, client_id: str, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """Append rows of the current client, or begin the next one."""
        if client_id != self._current:
            if client_id in self._positions:
                raise DataError(
                    f"a client's rows must be written one after the other, but split {self._split!r} returns to client "
                    f"{client_id!r} after {self._current!r}"
                )
            self._end_client()
            self._positions[client_id] = len(self._sizes)
            self._sizes.append(0)
            self._x_crcs.append(0)
            self._y_crcs.append(0)
            self._current = client_id
        self._sizes[-1] += len(x)
        self.digest.rows(x, y)
        self._x_crcs[-1] = checksums.of_rows(x, self._x_crcs[-1])
        self._y_crcs[-1] = checksums.of_rows(y, self._y_crcs[-1])
        start = 0
        while start < len(x):
            taken = min(len(x) - start, len(self._batch_x) - self._filled)
            self._batch_x[self._filled : self._filled + taken] = x[start : start + taken]
            self._batch_y[self._filled : self._filled + taken] = y[start : start + taken]
            self._filled += taken
            start += taken
            if self._filled == len(self._batch_x):
                self._flush()

    def finish(self) -> SplitFiles:
        """Write the remaining rows and the index; close the files."""
        self._end_client()
        if self._filled:
            self._flush()
        self._sink.close()
        _settle(self._file)
        sizes = np.frombuffer(self._sizes, np.int64)
        first_rows = np.cumsum(sizes) - sizes
        path = self._folder / index_file(self._split)
        with path.open("wb") as file:
            crcs = [pa.array(np.frombuffer(each, np.uint32)) for each in (self._x_crcs, self._y_crcs)]
            columns = [pa.array(list(self._positions), pa.large_string()), pa.array(first_rows), pa.array(sizes), *crcs]
            with pa.ipc.new_file(file, INDEX_SCHEMA) as sink:
                sink.write_batch(pa.record_batch(columns, schema=INDEX_SCHEMA))
            _settle(file)
        rows = self._folder / data_file(self._split)
        return SplitFiles(
            clients=len(sizes),
            rows=int(sizes.sum()),
            batch_rows=len(self._batch_x),
            data_bytes=rows.stat().st_size,
            data_blake2b=checksum(rows),
            data_crc32=checksums.of_file(rows),
            index_bytes=path.stat().st_size,
            index_blake2b=checksum(path),
            index_crc32=checksums.of_file(path),
        )

    def close(self) -> None:
        """Close the file, finished or not."""
        # What a full disk did not take is tried once more here, and its error is known.
        with suppress(OSError):
            self._file.close()

    def _end_client(self) -> None:
        if self._current is None:
            return
        if self._split == "train" and self._sizes[-1] == 0:
            raise DataError(
                f"client {self._current!r} of split 'train': a training client must have at least one example"
            )
        self.digest.client(self._current, self._sizes[-1])

    def _flush(self) -> None:
        columns = [
            to_column(self._batch_x[: self._filled], self._x),
            to_column(self._batch_y[: self._filled], self._y),
        ]
        self._sink.write_batch(pa.record_batch(columns, schema=self._schema))
        self._filled = 0


def _settle(file: BinaryIO) -> None:
    """Flush a file to the disk and close it, so that a crash cannot keep the folder's rename and lose its content."""
    file.flush()
    os.fsync(file.fileno())
    file.close()
