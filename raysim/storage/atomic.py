"""Writes files whole or not at all: beside their place, then renamed. Removes what killed processes left there."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raysim.storage import disk, hidden_name

log = logging.getLogger("raysim")

STALE_S = 24 * 3600.0
"""Age of a leftover where several processes may write: a file or folder that is being written is younger."""


def beside(path: Path) -> Path:
    """Return a temporary path for a file: hidden, on the same disk, unique over machines.

    >>> first = beside(Path("runs/digits/rounds.parquet"))
    >>> first.parent.as_posix(), first.name.startswith(".rounds.parquet.")
    ('runs/digits', True)
    """
    return path.with_name(hidden_name.hidden(path.name))


@contextmanager
def aside(path: Path, flushed: bool = False, needed_bytes: int | None = None, then: str = disk.AGAIN) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `path` at the end of the block; an error keeps the old file.

    Args:
        path: the file's place.
        flushed: write to the disk before the rename: after a power cut the file is the old or the new one.
        needed_bytes: the file's size, if that is known, for the error.
        then: how to go on after an error.

    Raises:
        DiskError: the file cannot be written; says why.
    """
    temporary = beside(path)
    with disk.writing(path, needed_bytes, then):
        try:
            yield temporary
            if flushed:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write(
    path: Path,
    by: Callable[[Path], object],
    flushed: bool = False,
    needed_bytes: int | None = None,
    then: str = disk.AGAIN,
) -> None:
    """Write a file by a function of its temporary path; see `aside`."""
    with aside(path, flushed, needed_bytes, then) as temporary:
        by(temporary)


def write_text(path: Path, text: str, flushed: bool = False) -> None:
    """Write a text in UTF-8; see `aside`."""
    write(path, lambda file: file.write_text(text, encoding="utf-8"), flushed, len(text))


def is_beside(path: Path) -> bool:
    """Whether the path's name is one of `beside`."""
    return hidden_name.is_hidden(path.name)


def sweep(folder: Path, older_than_s: float = STALE_S) -> None:
    """Delete temporary files and folders of `beside` that a killed process left in a folder; only there, not below it.

    Args:
        folder: need not exist.
        older_than_s: seconds since the last write; 0 where the caller's lock keeps all other writers away.
    """
    try:
        found = [folder / name for name in os.listdir(folder) if hidden_name.is_hidden(name)]
    except OSError:
        return
    for path in found:
        try:
            if time.time() - _written_s(path) < older_than_s:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except OSError as error:
            # Another process may remove it at the same time; if not, it does no harm.
            log.debug("%s stays: %s", path, error)
        else:
            log.info("removed %s, which a killed process had left", path)


def _written_s(path: Path) -> float:
    """Return when a file, or a file in a folder, was last written."""
    inside = list(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
    return max(each.lstat().st_mtime for each in (path, *inside))
