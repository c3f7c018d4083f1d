"""Checks the place of a file that a user names, before it is written: only a file may be replaced by one."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.errors import RaysimError
from raysim.storage.reading import regular


def check_takes_a_file(path: Path, error: type[RaysimError]) -> None:
    """Refuse a place that a file cannot take, or must not: a folder, or a device, a pipe or a socket.

    A file is written beside its place and renamed to it. As root that would put a file in the place of /dev/null.

    Raises:
        RaysimError: of the class `error`; says what is there.
    """
    if not path.name or path.name == "..":
        raise error(f"{path} is a folder: name a file in it.")
    if path.is_dir():
        raise error(f"{path} is a folder: name a file in it, such as {path / 'NAME'}.")
    if path.exists():
        regular(path, error)
    if path.is_symlink() and os.readlink(path).startswith("/proc/"):
        raise error(f"{path} stands for a stream of this process, which a file would replace: name a file.")
