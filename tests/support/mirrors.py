"""A folder at a URI that several machines mirror."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raysim.errors import RemoteError
from raysim.storage.remote.mirror import Mirror
from raysim.storage.remote.remote import Remote

Machine = Callable[[str], Mirror]
"""The mirror on the machine of that name, whose disk holds what it held before."""


def started(mirror: Mirror, **files: str) -> Mirror:
    """The mirror with these files in its copy."""
    mirror.pull()
    mirror.path.mkdir(exist_ok=True)
    for name, text in files.items():
        (mirror.path / name).write_text(text)
    return mirror


def texts(mirror: Mirror) -> dict[str, str]:
    """The copy's files."""
    files = (file for file in mirror.path.rglob("*") if file.is_file())
    return {file.relative_to(mirror.path).as_posix(): file.read_text() for file in files}


def put_only(first: int, monkeypatch: pytest.MonkeyPatch, mirror: Mirror) -> bool:
    """Push, though nothing answers any more after the first so many files; whether that cut it."""
    left, put = iter(range(first)), Remote.put

    def put_some(self: Remote, file: Path, name: str) -> None:
        if next(left, None) is None:
            raise RemoteError("gone")
        put(self, file, name)

    with monkeypatch.context() as patched:
        patched.setattr(Remote, "put", put_some)
        try:
            mirror.push()
        except RemoteError:
            return True
    return False
