"""Notices that a mapped file was written to in place, so that its rows are checked again."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.errors import DataError, within


class MappedFile:
    """The state of a file when it was mapped. A file in its place changes nothing: what is mapped stays as it is.

    Raises:
        DataError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._found = os.stat(path)
        except OSError as error:
            raise DataError(f"{path} cannot be read: {within(error)}") from error

    def was_written(self) -> bool:
        """Whether somebody wrote to it since it was mapped, or last found to be whole (`is_whole`).

        Raises:
            DataError: it is shorter now, so that its last rows cannot be read: the system would end the process.
        """
        before, now = self._found, self._now()
        if now is None:
            return False
        if now.st_size < before.st_size:
            raise DataError(
                f"{self._path} was cut off while it was in use: it had {before.st_size:,} bytes, and has "
                f"{now.st_size:,}. Restore it. To change a dataset while others use it, write it to another folder."
            )
        # The time of the last change too: who copies a file into its place, as `cp -p` does, may set that of the write.
        times = ((each.st_mtime_ns, each.st_ctime_ns, each.st_size) for each in (before, now))
        return len(set(times)) > 1

    def is_whole(self) -> None:
        """Note that it was checked: what was written to it before is known."""
        self._found = self._now() or self._found

    def _now(self) -> os.stat_result | None:
        """Its state; None where its name is gone, or is another file's: what is mapped stays as it is."""
        try:
            now = os.stat(self._path)
        except OSError:
            return None
        return now if (now.st_ino, now.st_dev) == (self._found.st_ino, self._found.st_dev) else None
