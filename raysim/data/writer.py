"""Defines DatasetWriter, which streams clients into a folder that `FederatedDataset.open` maps."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from raysim.data.client_arrays import client_id as as_text
from raysim.data.client_arrays import rows_of
from raysim.data.field import Field
from raysim.data.fingerprint import SPLITS, fingerprint
from raysim.data.manifest import THEN, Manifest, write_manifest
from raysim.data.split_writer import SplitWriter
from raysim.errors import DataError
from raysim.storage import atomic, disk
from raysim.storage.remote.uri import check_is_path

BATCH_BYTES = 64 * 2**20


class DatasetWriter:
    """Writes a dataset's folder, client by client, in memory of one record batch per split plus the clients' ids.

    A context manager. It writes to a hidden folder beside `path`, renames it to `path` when the block ends, and
    removes it when the block raises: `path` exists whole or not at all.

        with DatasetWriter(path, x=Field((784,), "uint8"), y=Field((), "int64"), num_classes=10) as writer:
            writer.write("train", "alice", x, y)
    """

    def __init__(
        self,
        path: str | Path,
        x: Field,
        y: Field,
        num_classes: int | None,
        *,
        provenance: Mapping[str, str] | None = None,
        batch_bytes: int = BATCH_BYTES,
    ) -> None:
        """Prepare to write.

        Args:
            path: the folder to create; must not exist.
            x: the features' field.
            y: the targets' field: integer with `num_classes`, floating without.
            num_classes: labels are in 0..num_classes - 1; None: regression.
            provenance: facts about where the data came from, kept in the folder and not part of the fingerprint.
            batch_bytes: bound of a record batch, and of the rows held in memory per split.

        Raises:
            DataError: `path` exists, or `y` and `num_classes` do not fit.
        """
        if y.is_floating != (num_classes is None):
            raise DataError(
                f"integer targets must come with num_classes and floating ones with None, "
                f"but y is {y} and num_classes is {num_classes}"
            )
        if num_classes is not None and num_classes < 1:
            raise DataError(f"num_classes must be at least 1, but got {num_classes}")
        check_is_path(path, "The folder of a dataset that is written", DataError)
        self._path = Path(path)
        if self._path.exists():
            raise DataError(f"{self._path} must not exist before a dataset is written there")
        self._x, self._y, self._num_classes = x, y, num_classes
        self._provenance = dict(provenance or {})
        self._batch_rows = max(1, batch_bytes // (x.example_bytes + y.example_bytes))
        self._held = ExitStack()
        self._staging: Path | None = None
        """Within the block."""
        self._splits: dict[str, SplitWriter] = {}

    def __enter__(self) -> Self:
        self._staging = self._held.enter_context(atomic.folder_aside(self._path, THEN))
        return self

    @property
    def buffered_rows(self) -> int:
        """Rows held in memory now; per split fewer than one record batch."""
        return sum(split.buffered_rows for split in self._splits.values())

    def write(self, split: str, client_id: str, x: npt.ArrayLike, y: npt.ArrayLike) -> None:
        """Add rows of a client; the next call may add to the same client, or begin the split's next client.

        Args:
            split: "train", "validation" or "test"; splits may alternate.
            client_id: its position in the split is the order of first calls.
            x: (rows, *x.shape), of the field's dtype; rows may be 0 (an evaluation client without examples).
            y: (rows, *y.shape), of the field's dtype.

        Raises:
            DataError: rows do not fit, a label is out of range, or the client's rows were already finished; by name.
        """
        if split not in SPLITS:
            raise DataError(f"a split must be one of {', '.join(SPLITS)}, but got {split!r}")
        if split not in self._splits:
            if self._staging is None:
                raise DataError(f"rows for {self._path} must be written inside `with DatasetWriter(...) as writer:`")
            with disk.writing(self._path, then=THEN):
                self._splits[split] = SplitWriter(self._staging, split, self._x, self._y, self._batch_rows)
        name = as_text(split, client_id)
        where = f"client {name!r} of split {split!r}"
        rows_x, rows_y = rows_of(where, "x", x), rows_of(where, "y", y)
        self._check(where, rows_x, rows_y)
        with disk.writing(self._path, then=THEN):
            self._splits[split].write(name, rows_x, rows_y)

    def _check(self, where: str, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        for column, rows, field in (("x", x, self._x), ("y", y, self._y)):
            if rows.ndim == 0 or rows.shape[1:] != field.shape or rows.dtype != np.dtype(field.dtype):
                raise DataError(
                    f"{where}: {column} must be rows of {field}, but got {rows.dtype} of shape {list(rows.shape)}"
                )
        if len(x) != len(y):
            raise DataError(f"{where}: x and y must have as many rows, but x has {len(x)} and y has {len(y)}")
        labels = y if self._y.padding is None else y[y != self._y.padding]
        if self._num_classes is not None and labels.size and not 0 <= labels.min() <= labels.max() < self._num_classes:
            raise DataError(
                f"{where}: labels must be in 0..{self._num_classes - 1}, but go from {labels.min()} to {labels.max()}"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._staging is not None:
                self._finish(self._staging)
        finally:
            for split in self._splits.values():
                split.close()
            self._staging = None
            self._held.close()

    def _finish(self, staging: Path) -> None:
        if "train" not in self._splits:
            raise DataError(f"split 'train' must have at least one client, but none was written to {self._path}")
        with disk.writing(self._path, then=THEN):
            files = {name: self._splits[name].finish() for name in SPLITS if name in self._splits}
        manifest = Manifest(
            x=self._x,
            y=self._y,
            num_classes=self._num_classes,
            fingerprint=fingerprint(
                self._x, self._y, self._num_classes, {name: split.digest for name, split in self._splits.items()}
            ),
            splits=files,  # names were checked when they were written
            provenance=self._provenance,
        )
        write_manifest(staging, manifest)
        try:
            staging.rename(self._path)
        except OSError as error:
            raise DataError(f"{self._path} must not exist before a dataset is written there: {error}") from error
