"""The files of a mirror's copy on this machine: which there are, which have changed, and what they hold at a moment."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from raysim.storage.cache import checksum
from raysim.storage.remote.index import Content, Known

_LAST = "checkpoints"
"""The folder whose files need the others."""

_IMMUTABLE = frozenset({_LAST, "clients", "client_state"})
"""Folders whose files are never written twice: a link pins what they hold."""


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Whole files, by their names below the folder; names that begin with a dot are of files being written."""
    for parent, names, found in os.walk(folder):
        names[:] = [name for name in names if not name.startswith(".")]
        for name in found:
            if not name.startswith("."):
                path = Path(parent) / name
                yield path.relative_to(folder).as_posix(), path


def content(file: Path) -> Content:
    """What a file holds."""
    return Content(file.stat().st_size, checksum(file))


def changed(known: Known | None, file: Path) -> bool:
    """Whether the file is another one than when it was known; one that is gone is not."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return False
    return known is None or (known.content.num_bytes, known.mtime_ns) != (found.st_size, found.st_mtime_ns)


def needs_others(name: str) -> bool:
    """Whether the file is a checkpoint, which is of no use before the rows and the states that it goes with."""
    return _LAST in PurePosixPath(name).parts


def pin(folder: Path, known: Mapping[str, Known], aside: Path) -> dict[str, tuple[Path, Known]]:
    """What has changed, as it is now: name -> a file in `aside` that nobody writes to, and what it holds."""
    found = {}
    # A checkpoint is pinned before the rows: these may have gone on meanwhile, never the other way round.
    for name, file in sorted(files(folder), key=lambda own: not needs_others(own[0])):
        if changed(known.get(name), file):
            copy = aside / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                mtime_ns = file.stat().st_mtime_ns
                _pin_one(name, file, copy)
            except FileNotFoundError:
                continue
            found[name] = copy, Known(content(copy), mtime_ns)
    # What was let go of while the others were pinned may lack what it needs.
    return {name: own for name, own in found.items() if (folder / name).exists()}


def _pin_one(name: str, file: Path, copy: Path) -> None:
    if _IMMUTABLE & set(PurePosixPath(name).parts):
        os.link(file, copy)
    else:
        shutil.copyfile(file, copy)
