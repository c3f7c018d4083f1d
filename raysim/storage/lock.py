"""One writer at a time: a run's folder is locked by the process that writes to it, a copy in the cache likewise.

The locks are the kernel's (`flock`), on a file in a run's folder or beside a copy: they go with their process, however
that ends, so none is ever stale. What is written in a run's `.lock` only says who holds it. Machines that share a disk
see each other's locks where the disk passes them on, as NFS does; where it knows no locks at all, a warning says so and
a run's folder is open to all.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from raysim.errors import RunFolderError

log = logging.getLogger("raysim")

FILE = ".lock"
"""It stays in the folder: who removed it could remove a file that another process has just locked."""

PATIENCE_S = 2.0
"""How long a lock is waited for: a process that was ended holds its own for a moment more."""

POLL_S = 0.1

DEPTH = 3
"""A run's folder lies at most so deep in a folder of several: sweep, point, trial."""


@contextmanager
def locked(folder: Path, run: str | None = None) -> Iterator[None]:
    """Be the only one inside who writes to the folder, which is made if it is not there.

    Args:
        folder: a run's.
        run: by which name the run can be attached to.

    Raises:
        RunFolderError: another process writes to it; says which one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("a+", encoding="utf-8") as file:
        if not _acquired(file):
            raise RunFolderError(_refusal(folder))
        file.truncate(0)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        json.dump({"host": socket.gethostname(), "process": os.getpid(), "since": since, "run": run}, file)
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Be the only one inside who has locked the file, which is made if it is not there; others wait their turn.

    Raises:
        OSError: the disk, which is this machine's own, knows no locks.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def check_free(folder: Path) -> None:
    """Touch nothing, but see whether anybody writes to the folder, or to one of the runs in it.

    Raises:
        RunFolderError: another process does; says which one.
    """
    for depth in range(DEPTH):
        for file in sorted(folder.glob("*/" * depth + FILE)):
            with file.open("a+", encoding="utf-8") as opened:
                if not _acquired(opened):
                    raise RunFolderError(_refusal(file.parent))


def _acquired(file: TextIO) -> bool:
    """Whether the lock was to be had; the file lets go of it when it is closed."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        except OSError as error:
            log.warning("%s cannot be locked (%s): nothing keeps two runs from writing to it", file.name, error)
            return True
        else:
            return True


def _refusal(folder: Path) -> str:
    try:
        holder = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        # It is being written just now.
        holder = {}
    who = f"process {holder['process']} on {holder['host']} since {holder['since']}" if holder else "another process"
    advice = "Wait for it, end it, or give the run another folder (--path, path=)."
    if name := holder.get("run"):
        advice = (
            f"Follow it with `raysim attach {name}`, end it with `raysim stop {name}`, or give the run another folder "
            f"(--path, path=)."
        )
    return f"{folder} is being written by {who}: a folder has one writer at a time. {advice}"
