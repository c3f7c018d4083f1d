"""Deletes files of this machine's copies, and notes them beside the copy: only these are deleted at its URI too.

A copy lies in the cache, which users and machines clean. What is missing there, and not noted, is fetched again.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn

from raysim.errors import DiskError
from raysim.storage import atomic, disk
from raysim.storage.cache import cache_root
from raysim.storage.remote.index import INDEX

log = logging.getLogger("raysim")

MIRRORS = "mirrors"
"""The folder of all copies in the cache."""

NOTES = ".removed"
"""The file beside a copy with the names of the files that raysim has deleted there, a line each."""

_copies_of_scripts: set[Path] = set()


def copies() -> Path:
    """Return the folder of this process's copies."""
    return cache_root().absolute() / MIRRORS


def know(of_script: Path) -> None:
    """Take this folder's copies for copies, too: a driver's cache may lie elsewhere than its script's."""
    _copies_of_scripts.add(of_script)


def copy_around(path: Path) -> Path | None:
    """Return the copy that is or contains `path`; None if there is none."""
    known = {copies(), *_copies_of_scripts}
    for folder in (path, *path.parents):
        # A folder from elsewhere may look like a copy, with an address to which a run would be uploaded.
        if folder.parent.parent in known and (folder.parent / INDEX).is_file():
            return folder
    return None


def unlink(file: Path, must_note: bool = False) -> None:
    """Delete a file of a run's folder, which may be missing, and note it if the folder is a copy.

    `must_note`: at the URI, too, it has to go.

    Raises:
        DiskError: it cannot be deleted, or not be noted where it must be.
    """
    with disk.deleting(file):
        file.unlink(missing_ok=True)
    _note(file, [file], must_note)


def check_deletable(folder: Path) -> None:
    """Raise DiskError naming the folder, at or below this one, that this user may not empty."""
    with disk.deleting(folder):
        _deletable(folder)


def check_notable(folder: Path) -> None:
    """Raise DiskError if nothing that is deleted in this folder can be noted, though it is a copy."""
    if (copy := copy_around(folder.absolute())) is not None:
        with disk.writing(copy.parent / NOTES), _notes(copy.parent, "a"):
            pass


def rmtree(folder: Path, must_note: bool = False) -> None:
    """Delete a folder of a run's folder with all that is in it, and note its files if the folder is a copy.

    It is renamed first: a process that is killed leaves all of it or nothing under its name. `must_note`: at the URI,
    too, they have to go.

    Raises:
        DiskError: it cannot be deleted, or not be noted where it must be. Where a folder in it may not be emptied,
            nothing has changed.
    """
    aside = atomic.beside(folder)
    with disk.deleting(folder):
        files = _deletable(folder)
        folder.rename(aside)
        _note(folder, files, must_note)
        shutil.rmtree(aside)


def noted(home: Path) -> Sequence[str]:
    """Return the names of the files that were deleted in the copy that lies in `home`, in order."""
    try:
        with _notes(home, "r") as notes:
            return notes.read().splitlines()
    except OSError:
        return ()


def forget(home: Path, count: int) -> None:
    """Remove the first `count` notes: the files are deleted at the URI too, or were written again."""
    if count:
        with _notes(home, "r+") as notes:
            left = notes.readlines()[count:]
            notes.seek(0)
            notes.truncate()
            notes.writelines(left)


@contextmanager
def _notes(home: Path, mode: str) -> Iterator[IO[str]]:
    """Open the notes, to write to them alone.

    Raises:
        OSError: a link is in their place, by which another file would be written to, or a pipe.
    """
    while True:
        with open(home / NOTES, mode, encoding="utf-8", errors="replace", opener=_itself) as opened:
            if mode != "r":
                fcntl.flock(opened, fcntl.LOCK_EX)
            found = os.fstat(opened.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(home / NOTES))
            if mode != "r" and found.st_nlink > 1:
                # A backup's, or a file of the user's that has been given this name.
                with atomic.aside(home / NOTES) as aside:
                    shutil.copyfile(home / NOTES, aside)
            if mode != "r" and not os.path.samestat(os.lstat(home / NOTES), found):
                # Replaced, here or by another process, before this one had the lock.
                continue
            yield opened
            return


def _itself(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _deletable(folder: Path) -> list[Path]:
    """Return the files below a folder; OSError naming the folder that this user may not empty."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    files: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=refuse):
        if (folders or names) and not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), place)
        files += [Path(place) / name for name in names]
    return files


def _note(place: Path, files: Sequence[Path], must: bool) -> None:
    copy = copy_around(place.absolute())
    if copy is None or not files:
        return
    lines = "".join(f"{file.absolute().relative_to(copy).as_posix()}\n" for file in files)
    try:
        with disk.writing(copy.parent / NOTES), _notes(copy.parent, "a") as notes:
            notes.write(lines)
    except DiskError as error:
        if must:
            raise
        # The files stay at the URI, where no reader of this run needs them.
        log.debug("what was deleted in %s is not noted: %s", copy, error)
