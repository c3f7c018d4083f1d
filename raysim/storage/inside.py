"""Makes a path of a name that a file, an index, an archive or a store holds; the path lies in its folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from raysim.errors import RaysimError

MOST_BYTES = 200
"""Of a part of a name: file systems take 255, and a file that is written aside has a longer name."""

MOST_PARTS = 16

_DRIVE = re.compile(r"[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def flaw(name: str) -> str | None:
    """Return why the name is not a plain path below a folder; None if it is one.

    >>> flaw("checkpoints/round-000001.safetensors"), flaw("../x"), flaw("/etc/passwd")
    (None, "has the part '..'", 'is absolute')
    """
    if not name:
        return "is empty"
    if name.startswith("/"):
        return "is absolute"
    if _DRIVE.match(name):
        return "begins with a drive letter"
    if "\\" in name:
        return "has a backslash"
    if _CONTROL.search(name):
        return "has a control character"
    parts = name.split("/")
    if odd := [part for part in parts if part in ("", ".", "..")]:
        return f"has the part {odd[0]!r}"
    try:
        too_long = max(len(part.encode()) for part in parts) > MOST_BYTES or len(parts) > MOST_PARTS
    except UnicodeEncodeError:
        return "is not text in UTF-8"
    return f"is longer than {MOST_PARTS} parts of {MOST_BYTES} bytes" if too_long else None


def check_links(folder: Path, error: type[RaysimError]) -> None:
    """Refuse a folder in which a symbolic link leads out of it: what is written, or removed, there would be elsewhere.

    Raises:
        RaysimError: of the class `error`; names the link and where it leads.
    """
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            link = os.path.join(place, name)
            if os.path.islink(link) and not Path(target := os.path.realpath(link)).is_relative_to(root):
                raise error(
                    f"{link} is a symbolic link to {target}, outside of {folder}: put the folder or file itself there."
                )


def inside(folder: Path, name: str, source: object, error: type[RaysimError]) -> Path:
    """Return `folder / name`, which lies in the folder, after symbolic links too.

    Args:
        folder: which the path must not leave; it may itself be reached by a link, and need not exist.
        name: parts divided by "/".
        source: what holds the name, for the error: a file, a URI.
        error: the class of the error.

    Raises:
        RaysimError: of the class `error`; names source, name and flaw.
    """
    why = flaw(name)
    if why is None:
        # `Path.resolve` raises an error for links that go round in a circle.
        root, target = os.path.realpath(folder), os.path.realpath(folder / name)
        if Path(target).is_relative_to(root):
            return folder / name
        why = f"leads to {target} by a symbolic link"
    raise error(f"{source} names the file {name!r}, which {why}: a name must lead to a file in {folder}.")


def in_cache(folder: Path, error: type[RaysimError]) -> Path:
    """Return a folder of the cache, to which raysim writes: no link, which another of its users may have put there.

    Raises:
        RaysimError: of the class `error`; says what to do.
    """
    if folder.is_symlink():
        raise error(
            f"{folder} must be a folder, but is a symbolic link, which raysim does not write through: delete the link. "
            f"To keep the cache on another disk, put all of it there (RAYSIM_CACHE)."
        )
    return folder
