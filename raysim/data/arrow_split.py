"""Defines the split on disk: memory-mapped Arrow files, which open instantly and whose pages processes share."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data import checksums
from raysim.data.manifest import Manifest, data_file, index_file, read_manifest
from raysim.data.mapped_file import MappedFile
from raysim.data.split import Arrays, check_position, position_in, text_of
from raysim.data.split_check import opened_rows, read_index, rows_of_batch
from raysim.errors import DataError, within
from raysim.storage.cache import datasets


class SplitPlace(NamedTuple):
    """The place of a dataset: its folder on the machine that sent it, and the name of its copies elsewhere."""

    folder: str
    key: str
    fingerprint: str


class ArrowSplit:
    """A split in a dataset's folder.

    A client's rows are a view of the mapped file; only a client that crosses a record batch's border is copied. Damage
    is an error before a row is used (data/checksums.py); rows of a file that was written to since are checked again.

    The split pickles as its place. The receiving machine maps the copy in its cache if there is one, else the folder.
    It fails if neither exists, or if the folder holds another dataset by then.
    """

    def __init__(self, folder: Path, name: str, manifest: Manifest, place: SplitPlace | None = None) -> None:
        """Map the split's files; `manifest` is the folder's, already checked. `place` is the split's origin.

        Raises:
            DataError: a file is damaged, as far as it is checked at once.
        """
        self._folder, self._name, self._manifest = folder, name, manifest
        key = folder.name if folder.parent == datasets().resolve() else manifest.fingerprint
        self.place = place or SplitPlace(str(folder), key, manifest.fingerprint)
        """The split pickles as this place."""
        self._files = manifest.of(name)
        self._mapped = [MappedFile(folder / file) for file in (data_file(name), index_file(name))]
        checksums.check_split(folder, name, self._files)
        self._batch_rows = self._files.batch_rows
        self._reader = opened_rows(folder / data_file(name), manifest, self._files)
        self._batches: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}
        index = read_index(folder / index_file(name), self._files)
        self._ids, self._first_rows, self._sizes, self._crcs = index
        self._checked = np.full(len(self._sizes), self._files.in_one_batch)
        """Whether a client's rows are known to be whole."""

    __repr__ = text_of

    def __len__(self) -> int:
        return len(self._sizes)

    def sizes(self, positions: Int64s | None = None) -> Int64s:
        """Return the number of examples per client, int64."""
        return self._sizes if positions is None else self._sizes[positions]

    def client(self, position: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the client's rows, read-only; DataError if they are damaged."""
        check_position(position, len(self))
        self._check_again_if_written()
        x, y = self._rows(position)
        if not self._checked[position]:
            if [checksums.of_rows(x), checksums.of_rows(y)] != [crcs[position] for crcs in self._crcs]:
                raise self._damaged(f"the rows of client {self.id_of(position)!r} do not match their checksum")
            self._checked[position] = True
        return x, y

    def _rows(self, position: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        row = int(self._first_rows[position])
        end = row + int(self._sizes[position])
        pieces = []
        while row < end:
            number, start = divmod(row, self._batch_rows)
            stop = min(start + end - row, self._batch_rows)
            x, y = self._batch(number)
            pieces.append((x[start:stop], y[start:stop]))
            row += stop - start
        if len(pieces) == 1:
            return pieces[0]
        x, y = (
            np.concatenate([np.empty((0, *field.shape), field.dtype), *(piece[column] for piece in pieces)])
            for column, field in enumerate((self._manifest.x, self._manifest.y))
        )
        x.flags.writeable = y.flags.writeable = False
        return x, y

    def arrays(self) -> Arrays | None:
        """Return views of the mapped file if it is a single record batch, else None."""
        if not self._files.in_one_batch:
            return None
        self._check_again_if_written()
        return Arrays(*self._batch(0), self._first_rows, self._check_again_if_written)

    def _check_again_if_written(self) -> None:
        """Raise DataError if a file in use was cut off, or the index is damaged, or the rows in one batch are."""
        # Each is asked: one that was cut off must not be read.
        if sum(file.was_written() for file in self._mapped):
            self._checked[:] = False
            checksums.check_split(self._folder, self._name, self._files)
            for file in self._mapped:
                file.is_whole()
            self._checked[:] = self._files.in_one_batch

    def id_of(self, position: int) -> str:
        """Return the client's id."""
        check_position(position, len(self))
        return str(self._ids[position].as_py())

    def position_of(self, client_id: str) -> int:
        """Return the client's position; DataError with the nearest id if there is none.

        The first call reads all ids.
        """
        return position_in(self._positions, client_id)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {client_id: position for position, client_id in enumerate(self._ids.to_pylist())}

    def _batch(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        if number not in self._batches:
            path = self._folder / data_file(self._name)
            try:
                self._batches[number] = rows_of_batch(path, self._reader, number, self._manifest, self._files)
            except DataError as error:
                # What describes a batch has no checksum of its own: where it is wrong, so are the rows.
                raise DataError(f"{within(error)}. {checksums.advice(self._folder)}") from error
        return self._batches[number]

    def _damaged(self, why: str) -> DataError:
        return DataError(f"{self._folder / data_file(self._name)} is damaged: {why}. {checksums.advice(self._folder)}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (*self.place, self._name)


def _reopen(folder: str, key: str, fingerprint: str, name: str) -> ArrowSplit:
    place, copy = SplitPlace(folder, key, fingerprint), datasets() / key
    try:
        manifest = read_manifest(copy)
    except DataError:
        # This machine has no copy: the sender's folder must be reachable.
        pass
    else:
        if manifest.fingerprint == fingerprint:
            return ArrowSplit(copy, name, manifest, place)
    try:
        manifest = read_manifest(Path(folder))
    except DataError as error:
        raise DataError(f"{within(error)}{_made_again(Path(folder))}") from error
    if manifest.fingerprint != fingerprint:
        raise DataError(
            f"{folder} must hold the dataset with fingerprint {fingerprint}, as when it was sent, "
            f"but holds {manifest.fingerprint}{_made_again(Path(folder))}"
        )
    return ArrowSplit(Path(folder), name, manifest, place)


def _made_again(folder: Path) -> str:
    """Return what to do about a folder that a split is mapped from and that is gone, as the end of an error."""
    is_cached = folder.parent in (datasets(), datasets().resolve())
    return ". A run that is resumed prepares or fetches it again." if is_cached else ""
