"""Writes files whole or not at all: beside their place, then renamed. Removes what killed processes left there."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from raysim.storage import disk, hidden_name, lock

log = logging.getLogger("raysim")

STALE_S = 24 * 3600.0
"""Age of a leftover where several processes may write: a file or folder that is being written is younger."""


def beside(path: Path) -> Path:
    """Return a temporary path for a file: hidden, on the same disk, unique over machines.

    >>> first = beside(Path("runs/digits/rounds.parquet"))
    >>> first.parent.as_posix(), first.name.startswith(".rounds.parquet.")
    ('runs/digits', True)
    """
    return path.with_name(hidden_name.hidden(path.name))


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


@contextmanager
def folder_aside(path: Path, then: str = disk.AGAIN) -> Iterator[Path]:
    """Yield a new folder beside `path`, for what is renamed to it or moved out; at the end it is deleted.

    It is locked: `sweep` takes no folder away in which a process is at work, whatever the clocks say, and
    `sweep_folders` needs no clock.

    Raises:
        DiskError: it cannot be made.
    """
    with ExitStack() as held:
        with disk.writing(path, then=then):
            folder = _locked_beside(path, held)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _locked_beside(path: Path, held: ExitStack) -> Path:
    while True:
        folder = beside(path)
        folder.mkdir(parents=True)
        with ExitStack() as here:
            # Before it is locked, another process may take it for one that was left.
            with suppress(FileNotFoundError):
                here.enter_context(lock.of_folder(folder))
            if folder.exists():
                held.enter_context(here.pop_all())
                return folder


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


def is_beside(path: Path) -> bool:
    """Whether the path's name is one of `beside`."""
    return hidden_name.is_hidden(path.name)


def sweep(folder: Path, older_than_s: float = STALE_S) -> None:
    """Delete temporary files and folders of `beside` that a killed process left in a folder; only there, not below it.

    Args:
        folder: need not exist.
        older_than_s: seconds since the last write; 0 where the caller's lock keeps all other writers away.
    """
    for path in _hidden(folder):
        # Another process may remove it at the same time; if not, it does no harm.
        with _removing(path):
            if time.time() - _written_s(path) >= older_than_s:
                _remove(path, unless_known=False)


def sweep_folders(path: Path) -> None:
    """Delete the folders of `folder_aside` for this path, of whatever age, that a killed process left.

    On disks without locks for folders, which cannot tell, they stay until `sweep` finds them old.
    """
    for found in _hidden(path.parent):
        if hidden_name.shown(found) == path and found.is_dir():
            with _removing(found):
                _remove(found, unless_known=True)


def _hidden(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if hidden_name.is_hidden(name)]
    except OSError:
        return []


@contextmanager
def _removing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        log.debug("%s stays: %s", path, error)


def _remove(path: Path, unless_known: bool) -> None:
    """Remove a file, or a folder in which no process is at work; `unless_known`: not if that cannot be told."""
    if not path.is_dir() or path.is_symlink():
        path.unlink()
    else:
        with lock.if_left(path) as is_left:
            if is_left is False or (is_left is None and unless_known):
                return
            shutil.rmtree(path)
    log.info("removed %s, which a killed process had left", path)


def _written_s(path: Path) -> float:
    """Return when a file, or anything in a folder, was last written."""
    walk = () if path.is_symlink() else os.walk(path)
    inside = (Path(place, name) for place, folders, files in walk for name in (*folders, *files))
    return max(each.lstat().st_mtime for each in (path, *inside))


def sync_folder(folder: Path) -> None:
    """Flush renames in the folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
