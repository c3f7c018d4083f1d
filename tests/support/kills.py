"""Kills a process before one of the changes that it makes to a folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from raysim.storage import atomic

CHANGES = frozenset({"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"})

KILLED = 77


def kill_before(number: int, path: str, pipe: int) -> None:
    """End this process before so many changes below `path` and one more; the pipe is told which one it was."""
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        writes = event != "open" or (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        # What is written aside is there as soon as it is opened; only its renaming is seen by others.
        aside = event in ("open", "os.remove") and atomic.is_beside(Path(str(arguments[0])))
        if event in CHANGES and writes and path in str(arguments[0]) and not aside:
            if not left:
                os.write(pipe, f"{event} {arguments[0]}".encode())
                os._exit(KILLED)
            left -= 1

    sys.addaudithook(hook)
