"""Stores client states on the disk: an immutable file for each round and chunk, with a row for each client.

A file has a temporary name until its chunk is trained; a chunk that is trained twice writes the same bytes to the same
name. Only the files that the manifest in `ServerState` names count (server/manifest.py). A file holds three NumPy
arrays: the clients' positions, their states (clients, S P), S vectors of each, and a checksum of each client's states;
three calls of `np.load` on the open file read them. Rows are read and written one at a time, so a process never holds
more states than it has clients in training. A row is checked whenever it is read.
"""

from __future__ import annotations

import io
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from raysim.errors import CheckpointError, DiskError, within
from raysim.run_folder.checkpoint import THEN
from raysim.server.manifest import StatePlace
from raysim.storage import atomic, disk
from raysim.storage.reading import listed, regular, tells_nothing, unreadable
from raysim.storage.remote import removed

log = logging.getLogger("raysim")

_DTYPES = MappingProxyType({torch.float32: "<f4", torch.float64: "<f8"})
_CHECKSUM = np.dtype("<u4")
_NAME = re.compile(r"\.?round-(\d{6,})-chunk-(\d{5,})\.npy.*")


class ClientStore:
    """Files of one run.

    Args:
        folder: for new files; created with the first one.
        older: a folder in which files that `folder` lacks are read.
        id_of: a position's client id, for errors.
        owner: the run's fingerprint; states of another run are refused.
    """

    def __init__(self, folder: Path, older: Path | None, id_of: Callable[[int], str], owner: str = "") -> None:
        self._folder, self._older, self._id_of, self.owner = folder, older, id_of, owner
        self._unsynced: set[Path] = set()

    @contextmanager
    def chunk(
        self, round_index: int, number: int, chunk: Sequence[int], places: Mapping[int, StatePlace], like: Tensor
    ) -> Iterator[ChunkStates]:
        """Open the states of a chunk's clients for reading and writing; at the end of the block the file is renamed."""
        path = self._folder / _name(round_index, number)
        with _writing(path):
            # Not its parents: a run's folder that was deleted is not made again.
            self._folder.mkdir(exist_ok=True)
        head, tail = _header(chunk, len(like), like.dtype), _tail_header(len(chunk))
        # Not `atomic.aside`: an error in the block comes from the training, not from the disk.
        temporary = atomic.beside(path)
        try:
            with _writing(path):
                file = temporary.open("wb")
            try:
                size = len(head) + len(chunk) * like.element_size() * len(like)
                with _writing(path, size):
                    file.write(head)
                    file.truncate(size)
                states = ChunkStates(self, places, like, file, len(head), path, round_index, chunk)
                yield states
                with _writing(path, size):
                    file.seek(0, os.SEEK_END)
                    file.write(tail + states.checksums.tobytes())
                    file.flush()
            finally:
                # What does not fit is written once more here, and its error is known.
                with suppress(OSError):
                    file.close()
            with _writing(path):
                temporary.replace(path)
        finally:
            # Where it stays, the next start removes it.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def reader(self, places: Mapping[int, StatePlace], like: Tensor) -> ReadStates:
        """Return the states for reading only, for work whose results are not kept."""
        return ReadStates(self, places, like)

    def read(self, position: int, place: StatePlace, like: Tensor) -> Tensor:
        """Read one client's state (S P,), on the CPU.

        Raises:
            CheckpointError: the file is missing, truncated or another; the error names client, file, and the checkpoint
                to resume from. Or this user may not read it.
        """
        path = self._folder / _name(place.round, place.chunk)
        row = torch.empty(len(like), dtype=like.dtype)
        try:
            if not path.exists() and self._older is not None:
                path = self._older / path.name
            with regular(path, CheckpointError).open("rb") as file:
                rows, start = _start(file, position, place, row)
                file.seek(start + place.row * row.nbytes)
                got = file.readinto(_bytes(row))
                if got != row.nbytes:
                    raise ValueError(f"it is truncated: {got} of the row's {row.nbytes} bytes are there")
                file.seek(start + rows * row.nbytes + len(_tail_header(rows)) + place.row * _CHECKSUM.itemsize)
                checksum = file.read(_CHECKSUM.itemsize)
            # Earlier versions' do not tell whose they are.
            expected = (_checksum(owner, place.round, position, row) for owner in dict.fromkeys((self.owner, "")))
            if checksum not in (each.to_bytes(_CHECKSUM.itemsize, "little") for each in expected):
                raise ValueError(f"it is damaged, or another run's: row {place.row} does not match its checksum")
        except Exception as error:
            if isinstance(error, OSError) and tells_nothing(error):
                # It is whole, as far as is known: nothing is to be deleted.
                raise CheckpointError(
                    f"The state of client {self._id_of(position)!r}: {path} {unreadable(error)}."
                ) from None
            # NumPy raises many kinds of errors for damaged headers.
            raise CheckpointError(
                f"The state of client {self._id_of(position)!r} cannot be read from {path}: {within(error)}. It was "
                f"written in round {place.round}: resume from a checkpoint of at most {place.round} finished rounds "
                f"(delete the later ones from the run's checkpoints), or start afresh."
            ) from None
        return row

    def committed(self, round_index: int, num_chunks: int) -> None:
        """Note a committed round: its files are flushed before the next checkpoint names them."""
        self._unsynced |= {self._folder / _name(round_index, number) for number in range(num_chunks)}

    def flush(self) -> None:
        """Flush committed files to the disk: after a power cut, a checkpoint must not name files that are lost."""
        for path in sorted(self._unsynced):
            if path.exists():
                # Something else may be in its place by now.
                regular(path, CheckpointError)
            with _writing(path), path.open("rb") as file:
                os.fsync(file.fileno())
        if self._unsynced:
            with _writing(self._folder):
                atomic.sync_folder(self._folder)
        self._unsynced.clear()

    def sweep(self, named: set[tuple[int, int]], before: int | None = None) -> None:
        """Delete files of rounds before `before` (None: of all rounds) whose (round, chunk) is not in `named`."""
        if not self._folder.exists():
            return
        for path in listed(self._folder, CheckpointError):
            match = _NAME.fullmatch(path.name)
            if match is None or (before is not None and int(match[1]) >= before):
                continue
            if path.name.startswith(".") or (int(match[1]), int(match[2])) not in named:
                removed.unlink(path)
                self._unsynced.discard(path)


class ReadStates:
    """`ClientStates` for reading only."""

    def __init__(self, store: ClientStore, places: Mapping[int, StatePlace], like: Tensor) -> None:
        self._store, self._places, self._like = store, places, like

    def read(self, position: int) -> Tensor | None:
        """See `ClientStates`."""
        place = self._places.get(position)
        return None if place is None else self._store.read(position, place, self._like)

    def write(self, row: int, state: Tensor) -> None:
        """Do nothing: a measurement does not change client states."""


class ChunkStates:
    """`ClientStates` of one chunk, while its file is open."""

    def __init__(
        self,
        store: ClientStore,
        places: Mapping[int, StatePlace],
        like: Tensor,
        file: BinaryIO,
        start: int,
        path: Path,
        round_index: int,
        chunk: Sequence[int],
    ) -> None:
        self._known, self._like = ReadStates(store, places, like), like
        self._file, self._start, self._path = file, start, path
        self._owner, self._round, self._chunk = store.owner, round_index, chunk
        self.checksums = np.zeros(len(chunk), _CHECKSUM)
        """Of the rows written so far."""

    def read(self, position: int) -> Tensor | None:
        """See `ClientStates`."""
        return self._known.read(position)

    def write(self, row: int, state: Tensor) -> None:
        """See `ClientStates`."""
        kept = state.cpu().contiguous()
        self.checksums[row] = _checksum(self._owner, self._round, self._chunk[row], kept)
        with _writing(self._path):
            self._file.seek(self._start + row * self._like.element_size() * len(self._like))
            self._file.write(_bytes(kept))


@contextmanager
def _writing(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turn errors of the disk into errors of raysim."""
    try:
        with disk.writing(path, needed_bytes, then=THEN):
            yield
    except DiskError as error:
        raise CheckpointError(f"The clients' states {error}") from error


def _bytes(vector: Tensor) -> memoryview:
    """Return the vector's memory."""
    array: Any = vector.view(torch.uint8).numpy()
    return memoryview(array)


def _name(round_index: int, number: int) -> str:
    return f"round-{round_index:06d}-chunk-{number:05d}.npy"


def _header(positions: Sequence[int], size: int, dtype: torch.dtype) -> bytes:
    """Return the bytes before the rows: the positions, and NumPy's header of the array of rows."""
    head = io.BytesIO()
    np.save(head, np.asarray(positions, dtype="<i8"))
    rows = {"descr": _DTYPES[dtype], "fortran_order": False, "shape": (len(positions), size)}
    np.lib.format.write_array_header_1_0(head, rows)
    return head.getvalue()


def _tail_header(rows: int) -> bytes:
    """Return the bytes between the rows and their checksums."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": _CHECKSUM.str, "fortran_order": False, "shape": (rows,)})
    return head.getvalue()


def _checksum(owner: str, round_index: int, position: int, state: Tensor) -> int:
    """Return the CRC-32 of a client's states after a round; of the same states elsewhere it is another one."""
    return zlib.crc32(_bytes(state), zlib.crc32(f"{owner}{round_index} {position}".encode()))


def _start(file: BinaryIO, position: int, place: StatePlace, like: Tensor) -> tuple[int, int]:
    """Return number and offset of the rows; raise ValueError if the file is not the one in the manifest."""
    np.lib.format.read_magic(file)
    (rows,), _, _ = np.lib.format.read_array_header_1_0(file)
    positions = np.frombuffer(file.read(8 * rows), dtype="<i8").tolist()
    head = _header(positions, len(like), like.dtype)
    file.seek(0)
    if file.read(len(head)) != head or positions[place.row : place.row + 1] != [position]:
        raise ValueError(f"row {place.row} is not of this client and model")
    return rows, len(head)
