"""Tells whether a run has begun in a folder, and empties one, so that a process may be killed at any moment of both."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.run_folder.files import RECORD, SWEEP
from raysim.storage import atomic, lock
from raysim.storage.remote import removed


def is_unbegun(path: Path) -> bool:
    """Whether no run has begun in a folder: it is missing, or has only what is written before a run's record.

    Wherever a process is killed, it leaves a folder that has its record, or is unbegun.
    """
    if not path.is_dir():
        return not os.path.lexists(path)
    return all(_comes_before(entry) for entry in path.iterdir())


def clear(path: Path) -> None:
    """Delete the content of a run's folder; `RunFolder.check_free` has checked that it is one.

    The lock stays, which other processes may have open. The record goes last: without it, it would be unknown whose the
    rest is. Checkpoints go first, and at once: there is never one without what it takes to go on from it.

    At a URI its content has to go, too: the next run would fetch checkpoints of this one.

    Raises:
        DiskError: something cannot be deleted, or not at the URI. Where a folder in it may not be emptied, nothing has
            changed.
    """
    removed.check_notable(path)
    entries = sorted(path.iterdir(), key=_turn)
    folders = [entry for entry in entries if entry.is_dir() and not entry.is_symlink()]
    for folder in folders:
        removed.check_deletable(folder)
    for entry in entries:
        if entry in folders:
            removed.rmtree(entry, must_note=True)
        elif entry.name != lock.FILE:
            removed.unlink(entry, must_note=True)


def _turn(entry: Path) -> int:
    """Return when an entry is deleted.

    `sweep.json` goes last: alone it is an unbegun folder, but a sweep's record without it cannot be read.
    """
    return {"checkpoints": -1, RECORD: 1, SWEEP: 2}.get(entry.name, 0)


def _comes_before(entry: Path) -> bool:
    return entry.name in (lock.FILE, SWEEP) or atomic.is_beside(entry)
