"""Files that are whole or not there at all: written beside their place, then renamed."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def beside(path: Path) -> Path:
    """Where a file is written first: hidden, on the same disk, and nobody else's, on whatever machine.

    >>> first = beside(Path("runs/digits/rounds.parquet"))
    >>> first.parent.as_posix(), first.name.startswith(".rounds.parquet.")
    ('runs/digits', True)
    """
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


@contextmanager
def aside(path: Path, flushed: bool = False) -> Iterator[Path]:
    """A path to write to, which is renamed to `path` at the end of the block; an error leaves what was there.

    Args:
        path: where the file will lie.
        flushed: it is on the disk before it has its name: a power cut leaves the old file or the new one.
    """
    temporary = beside(path)
    try:
        yield temporary
        if flushed:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, by: Callable[[Path], object], flushed: bool = False) -> None:
    """Write a file by a function of the path that it is written to first; see `aside`."""
    with aside(path, flushed) as temporary:
        by(temporary)


def write_text(path: Path, text: str, flushed: bool = False) -> None:
    """Likewise a text, in UTF-8."""
    write(path, lambda file: file.write_text(text, encoding="utf-8"), flushed)
