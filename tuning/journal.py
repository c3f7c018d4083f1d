"""Appends to a study's journal whole lines or none: what a full disk or a kill has cut off is removed before."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from raysim.storage import disk

THEN = f"The trials that have ended are kept: {disk.REMEDY}, then give the same command again."
"""How to go on where the journal cannot be written."""

_PIECE_BYTES = 1 << 16


class Journal(JournalFileBackend):
    """Optuna's file of lines. Optuna appends behind a line that was cut off, and can then read neither.

    Args:
        file: of the journal; it is made where it is missing.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._turn = file, JournalFileSymlinkLock(str(file))
        super().__init__(str(file), self._turn)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append a line for each record, all of them or none.

        Raises:
            DiskError: the disk is full, or the file cannot be written; names it.
        """
        lines = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in logs).encode()
        with self._alone(len(lines)), disk.writing(self._file, len(lines), THEN), self._opened() as file:
            end = _end_of_whole_lines(file)
            file.truncate(end)
            file.seek(end)
            try:
                _write(file, lines)
            except OSError:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def _opened(self) -> FileIO:
        # Without a buffer: what does not fit would be written once more when the file is closed.
        return open(self._file, "r+b", buffering=0)

    @contextmanager
    def _alone(self, needed_bytes: int) -> Iterator[None]:
        with disk.writing(self._file, needed_bytes, THEN):
            self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()


def _write(file: FileIO, lines: bytes) -> None:
    left = memoryview(lines)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())


def _end_of_whole_lines(file: FileIO) -> int:
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _PIECE_BYTES)
        file.seek(start)
        if (place := file.read(end - start).rfind(b"\n")) >= 0:
            return start + place + 1
        end = start
    return 0
