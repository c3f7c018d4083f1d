"""Writes files whole or not at all: beside their place, then renamed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raysim.storage import disk


def beside(path: Path) -> Path:
    """Return a temporary path for a file: hidden, on the same disk, unique over machines.

    >>> first = beside(Path("runs/digits/rounds.parquet"))
    >>> first.parent.as_posix(), first.name.startswith(".rounds.parquet.")
    ('runs/digits', True)
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


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
