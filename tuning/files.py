"""Files that several processes of a study may touch, or that a killed one left half made."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file by a function of its path, whole or not at all: two processes may end at the same time."""
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def clear_half_made(run: Path) -> None:
    """Remove a run's folder that was never finished being made: there is nothing in it to go on with."""
    if run.is_dir() and not (run / "experiment.json").exists():
        shutil.rmtree(run)
