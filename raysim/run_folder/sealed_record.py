"""Writes JSON files of a run's folder with their checksum, and checks files against theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.errors import RunFolderError
from raysim.storage import atomic, disk, sealed
from raysim.storage.reading import MOST_BYTES


class UnreadableRecordError(RunFolderError):
    """The file may be whole, but cannot be read now: by this user, or for want of memory or open files."""


def write_json(record: Mapping[str, Any], path: Path) -> None:
    """Write a file of a run's folder with its checksum, completely or not at all, and flush it to the disk."""
    content = json.dumps({"checksum": sealed.BLANK, **record}, indent=2).encode() + b"\n"
    atomic.write(path, lambda file: sealed.write(file, content), flushed=True)
    with disk.writing(path):
        atomic.sync_folder(path.parent)


def check_sealed(file: Path, last: bool = False) -> None:
    """Check a file of a run's folder against its checksum; see `sealed.check`.

    Raises:
        UnreadableRecordError: nothing is known of it.
        RunFolderError: it is damaged, or has no checksum.
    """
    advice = "Restore it from a copy of the folder, or start afresh (--overwrite, overwrite=True)."
    # Tables, whose mark comes last, may have any size.
    most = None if last else MOST_BYTES
    sealed.check(file, RunFolderError, advice, last, most, denied=UnreadableRecordError)
