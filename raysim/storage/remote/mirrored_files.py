"""Lists, compares and pins the files of a mirror's copy on this machine."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from raysim.storage.cache import checksum
from raysim.storage.remote.index import Content, Known, flaw

log = logging.getLogger("raysim")

_LAST = "checkpoints"
"""The folder whose files need files of other folders."""

_IMMUTABLE = frozenset({_LAST, "clients", "client_state"})
"""Folders whose files are never written twice: a link pins their content."""

_STEP_NS = 2_000_000_000
"""The longest step in which a disk counts the times of files."""

PIN_ATTEMPTS = 5
"""How often files are pinned until no checkpoint is deleted meanwhile."""

_UNSETTLED = -1
"""In place of the time of a file that may still be written with the same one."""


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


def record_of(name: PurePosixPath, found: Content, mtime_ns: int) -> Known:
    """Return the record of a file with this content and time.

    A file that was written just now may be written again with the same size and time: disks count time in steps, of up
    to 2 s. Its time is not kept, so the next comparison reads it.
    """
    is_settled = not _IMMUTABLE.isdisjoint(name.parts) or time.time_ns() - mtime_ns > _STEP_NS
    return Known(found, mtime_ns if is_settled else _UNSETTLED)


def may_differ(known: Known | None, file: Path) -> bool:
    """Return whether the file must be read to know if it differs from its record; False if it no longer exists."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return known is None or (known.content.num_bytes, known.mtime_ns) != (found.st_size, found.st_mtime_ns)


def compared(folder: Path, record: Mapping[str, Known]) -> tuple[dict[str, Known], list[str]]:
    """Compare the files with their records: return the records, with the times now, and the names of what differs.

    A file is read only if its size is as recorded and its time is not. What is missing does not differ.
    """
    now, changed = dict(record), []
    for name, file in files(folder):
        known = record.get(name)
        try:
            found = file.stat()
            if known is None or known.content.num_bytes != found.st_size:
                changed.append(name)
            elif known.mtime_ns != found.st_mtime_ns:
                if content(file) == known.content:
                    now[name] = record_of(PurePosixPath(name), known.content, found.st_mtime_ns)
                else:
                    changed.append(name)
        except FileNotFoundError:
            continue
    return now, changed


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and time of each file: a file that is written, or replaced, gets others."""
    found = {}
    for name, file in files(folder):
        with suppress(FileNotFoundError):
            status = file.stat()
            found[name] = status.st_ino, status.st_size, status.st_mtime_ns
    return found


def needs_others(name: str) -> bool:
    """Return whether the file is a checkpoint, which is useless before its rows and states are there."""
    return _LAST in PurePosixPath(name).parts


class Pinned(NamedTuple):
    """What `pin` found.

    files: name -> an unchanging file, its content. is_whole: every checkpoint that was listed is among them, or known.
    """

    files: dict[str, tuple[Path, Known]]
    is_whole: bool


def pin(folder: Path, record: Mapping[str, Known], aside: Path) -> Pinned:
    """Pin the files that may differ from their record, below `aside`.

    A checkpoint that is deleted while others are pinned may lack files that it needs. It is left out, and all are
    pinned once more, a few times: where rounds are short, each checkpoint is soon deleted for a newer one.
    """
    for attempt in range(PIN_ATTEMPTS):
        if attempt:
            # Without hard links these are copies of all checkpoints.
            shutil.rmtree(aside / str(attempt - 1), ignore_errors=True)
        listed = dict(sorted(files(folder), key=lambda item: not needs_others(item[0])))
        pinned = _pinned(folder, listed, record, aside / str(attempt))
        # Checkpoints last: one that is still there has all that it needs, so that was there too.
        present = {name for name in reversed(pinned) if (folder / name).exists()}
        is_whole = all(file.exists() for name, file in listed.items() if needs_others(name))
        if is_whole:
            break
    # Checksums last: they take the longest, and what is pinned does not change.
    found = {
        name: (copy, record_of(PurePosixPath(name), content(copy), mtime_ns))
        for name, (copy, mtime_ns) in pinned.items()
        if name in present
    }
    return Pinned(found, is_whole)


def _pinned(
    folder: Path, listed: Mapping[str, Path], record: Mapping[str, Known], aside: Path
) -> dict[str, tuple[Path, int]]:
    """Pin the files; return name -> an unchanging file, the time of the original. Checkpoints come first."""
    found: dict[str, tuple[Path, int]] = {}
    # A checkpoint is pinned before the rows: rows may be newer than the checkpoint, but not older. What rows say may
    # lie in a file that was written before them, but after the list was made: it is made once more.
    later = (item for item in files(folder) if item[0] not in listed and not needs_others(item[0]))
    for name, file in chain(listed.items(), later):
        if may_differ(record.get(name), file):
            copy = aside / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                mtime_ns = file.stat().st_mtime_ns
                _pin_one(name, file, copy)
            except FileNotFoundError:
                continue
            found[name] = copy, mtime_ns
    return found


def _pin_one(name: str, file: Path, copy: Path) -> None:
    if _IMMUTABLE & set(PurePosixPath(name).parts):
        # Some disks have no hard links, or no more of them.
        with suppress(OSError):
            os.link(file, copy)
            return
    shutil.copyfile(file, copy)
