"""Lists, compares and pins the files of a mirror's copy on this machine."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

from raysim.storage.cache import checksum
from raysim.storage.remote.index import Content, Known, flaw

log = logging.getLogger("raysim")

_LAST = "checkpoints"
"""The folder whose files need files of other folders."""

_IMMUTABLE = frozenset({_LAST, "clients", "client_state"})
"""Folders whose files are never written twice: a link pins their content."""


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield whole files, with their names below the folder; a name with a leading dot is an unfinished file.

    A file whose name no index may hold is left out, with a warning; raysim writes none.
    """
    for parent, names, found in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in found:
            if not name.startswith("."):
                path = Path(parent) / name
                below = path.relative_to(folder).as_posix()
                if (why := flaw(below) or _other_kind(path)) is None:
                    yield below, path
                else:
                    _left_out(folder, below, why if why.startswith("it ") else f"its name {why}")


@cache
def _left_out(folder: Path, name: str, why: str) -> None:
    log.warning("%s: the file %r stays on this machine, because %s", folder, name, why)


def _other_kind(path: Path) -> str | None:
    """Return why a file cannot be copied: a device need not end, a pipe waits for a writer. None if it is gone."""
    try:
        is_other = not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return None
    return "it is not a regular file" if is_other else None


def content(file: Path) -> Content:
    """Return the size and checksum of a file."""
    return Content(file.stat().st_size, checksum(file))


def is_changed(known: Known | None, file: Path) -> bool:
    """Return whether the file differs from its record; False for a file that no longer exists."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return known is None or (known.content.num_bytes, known.mtime_ns) != (found.st_size, found.st_mtime_ns)


def needs_others(name: str) -> bool:
    """Return whether the file is a checkpoint, which is useless before its rows and states are there."""
    return _LAST in PurePosixPath(name).parts


def pin(folder: Path, known: Mapping[str, Known], aside: Path) -> dict[str, tuple[Path, Known]]:
    """Pin the changed files: return name -> an unchanging file in `aside`, and its content."""
    found = {}
    # A checkpoint is pinned before the rows: rows may be newer than the checkpoint, but not older.
    for name, file in sorted(files(folder), key=lambda item: not needs_others(item[0])):
        if is_changed(known.get(name), file):
            copy = aside / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                mtime_ns = file.stat().st_mtime_ns
                _pin_one(name, file, copy)
            except FileNotFoundError:
                continue
            found[name] = copy, Known(content(copy), mtime_ns)
    # A checkpoint that was deleted while others were pinned may lack files that it needs.
    return {name: pair for name, pair in found.items() if (folder / name).exists()}


def _pin_one(name: str, file: Path, copy: Path) -> None:
    if _IMMUTABLE & set(PurePosixPath(name).parts):
        os.link(file, copy)
    else:
        shutil.copyfile(file, copy)
