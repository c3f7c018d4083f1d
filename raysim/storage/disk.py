"""Says why a file could not be written: which one, how much room is missing, and how to go on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysim.errors import DiskError, RaysimError
from raysim.storage import cache
from raysim.storage.hidden_name import shown

REMEDY = "{remedy}"
"""Stands, in what is said of how to go on, for what to do about the error first."""

AGAIN = f"First {REMEDY}, then do it again."

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def writing(path: Path, needed_bytes: int | None = None, then: str = AGAIN) -> Iterator[None]:
    """Turn an error of the disk in the block, which writes `path`, into one that names the file.

    Args:
        path: the file, or the folder. What is written aside is named by its place.
        needed_bytes: what is being written, if that is known.
        then: how to go on; REMEDY in it stands for what to do first.

    Raises:
        DiskError: the file could not be written. Errors of a network, and those that are named already, pass.
    """
    try:
        yield
    except (DiskError, ConnectionError, TimeoutError):
        raise
    except OSError as error:
        if error.errno is None:
            raise
        raise DiskError(
            f"{shown(path)} could not be written: {why(path, error, needed_bytes)}. "
            f"{_with_remedy(then, error)}{_of_cache(path)}"
        ) from error


def make_folder(folder: Path) -> None:
    """Make a folder, and those that it lies in, where they are missing.

    Raises:
        DiskError: it cannot be made; see `writing`.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)


def _with_remedy(then: str, error: OSError) -> str:
    if error.errno in FULL:
        return then.replace(REMEDY, "make room")
    return then.replace(REMEDY, "allow writing there" if error.errno in _DENIED else "see to that")


def _of_cache(path: Path) -> str:
    """Return what says why a dataset of the cache is where it is: nobody has asked for it by its path."""
    try:
        datasets = cache.datasets()
    except (RaysimError, RuntimeError):
        return ""
    if not path.absolute().is_relative_to(datasets):
        return ""
    return (
        f" It is in raysim's cache, {datasets.parent}, by the environment variable {cache.variable()}; RAYSIM_CACHE "
        f"names another folder."
    )


@contextmanager
def deleting(path: Path) -> Iterator[None]:
    """Turn an error of the disk in the block, which deletes `path`, into one that names the file.

    Raises:
        DiskError: it could not be deleted.
    """
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"{error.filename or path} could not be deleted: {error.strerror or error}. Delete it, or make it "
            f"deletable, and give the same command again."
        ) from error


def why(path: Path, error: OSError, needed_bytes: int | None = None) -> str:
    """Return the reason in words; of a full disk, with the room that it has and that the file needs."""
    reason = os.strerror(error.errno) if error.errno is not None else str(error)
    if error.errno not in FULL:
        return reason
    free = free_bytes(path)
    if needed_bytes is None:
        return f"{reason}: {in_words(free)} are free"
    return f"{reason}: {in_words(needed_bytes)} are needed, and {in_words(free)} are free"


def free_bytes(path: Path) -> int:
    """Return the free room of the disk on which a file is, or would be."""
    for folder in path.absolute().parents:
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            continue
    return 0


def in_words(num_bytes: int) -> str:
    """Return a number of bytes for people.

    >>> in_words(12), in_words(1220), in_words(3_400_000), in_words(68_000_000_000)
    ('12 bytes', '1.22 kB', '3.4 MB', '68 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes} bytes"
