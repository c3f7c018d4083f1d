"""Lets a study's SQLite file be written with a log ahead of it, which waits for the disk once in a while.

By default SQLite waits for the disk two or three times for each change, and Optuna makes some ten changes a trial. With
the log a kill loses nothing; a loss of power may lose the last changes, never the file. A trial's rounds lie in its own
folder, so a study that goes on has them.

The log needs memory that all processes of a file share: it is for disks of this machine. Source:
https://www.sqlite.org/wal.html.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

MOUNTS = Path("/proc/self/mounts")

OF_THIS_MACHINE = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
"""File systems that no other machine writes to."""


def is_here(file: Path, mounts: Path = MOUNTS) -> bool:
    """Return whether the file lies on a disk of this machine; False where that is not known.

    Args:
        file: it need not exist yet.
        mounts: Linux's table of file systems: device, where it is mounted, kind, and more.
    """
    if sys.platform != "linux":
        return False
    try:
        rows = [row.split() for row in mounts.read_text(errors="replace").splitlines()]
    except OSError:
        return False
    absolute = file.resolve()
    # Linux writes a blank of a name as \040. Of two at one place, the later one is seen.
    kinds = {Path(row[1].replace("\\040", " ")): row[2] for row in rows if len(row) > 2}
    over = [place for place in kinds if absolute.is_relative_to(place)]
    return bool(over) and kinds[max(over, key=lambda place: len(place.parts))] in OF_THIS_MACHINE


def write_ahead(engine: Engine) -> None:
    """Have all connections of an engine write with a log; the file stays as it is where that is not possible."""

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _: Any) -> None:
        # Another process may hold the file in the other mode.
        with suppress(sqlite3.OperationalError):
            if connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",):
                connection.execute("PRAGMA synchronous = NORMAL")


def put_back(file: Path) -> None:
    """Bring the log into the file, so that the study is one file again; not while another process uses it."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(file, timeout=0)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
