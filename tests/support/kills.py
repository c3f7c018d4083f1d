"""What a process leaves that is killed before one of the changes that it makes to a folder."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from raysim.storage import atomic

CHANGES = frozenset({"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir"})

KILLED = 77


def kill_before(number: int, path: str, pipe: int) -> None:
    """End this process before so many changes below `path` and one more; the pipe is told which one it was."""
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if _changes(event, arguments, path):
            if not left:
                os.write(pipe, f"{event} {arguments[0]}".encode())
                os._exit(KILLED)
            left -= 1

    sys.addaudithook(hook)


def left_before_each(path: Path, at: Path, work: Callable[[], object]) -> list[tuple[str, Path]]:
    """Do some work; return each change that it makes below `path`, with a copy of what is there before it.

    A process that is killed then leaves the same: what is not in a file yet is lost.
    """
    left: list[tuple[str, Path]] = []
    is_at_work = True

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal is_at_work
        # What is written aside is there as soon as it is opened; only its renaming is seen by others.
        is_aside = event in ("open", "os.remove") and atomic.is_beside(Path(str(arguments[0])))
        if is_at_work and _changes(event, arguments, str(path)) and not is_aside:
            is_at_work = False
            copy = at / str(len(left))
            if path.exists():
                shutil.copytree(path, copy)
            left.append((f"{event} {arguments[0]}", copy))
            is_at_work = True

    sys.addaudithook(hook)
    work()
    is_at_work = False
    return left


def _changes(event: str, arguments: tuple[object, ...], path: str) -> bool:
    if event not in CHANGES or path not in str(arguments[0]):
        return False
    return event != "open" or (isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)))
