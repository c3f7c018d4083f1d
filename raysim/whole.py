"""Files that are whole or not there at all: written beside their place, then renamed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write(path: Path, by: Callable[[Path], object], flushed: bool = False) -> None:
    """Write a file by a function of the path that it is written to first; two processes may do so at a time.

    Args:
        path: where it will lie.
        by: writes it.
        flushed: it is on the disk before it has its name: a power cut leaves the old file or the new one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        by(temporary)
        if flushed:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str, flushed: bool = False) -> None:
    """Likewise a text, in UTF-8."""
    write(path, lambda file: file.write_text(text, encoding="utf-8"), flushed)
