"""Finds the file or folder that a path without one is likely to mean."""

from __future__ import annotations

import os
from pathlib import Path

from raysim.config import messages

_LOOKED_AT = 10_000
"""Entries of a folder that are looked at: one may hold millions of other files."""


def entries(folder: Path) -> list[Path]:
    """Return the first entries of a folder, in order; none if it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted(folder / entry.name for _, entry in zip(range(_LOOKED_AT), found, strict=False))
    except OSError:
        return []


def nearest(path: Path) -> str:
    """Return a hint with the nearest name in the path's folder, if one is near.

    Endings are left out of the comparison: they would make any two files of one kind alike.
    """
    others = sorted(entries(path.parent), key=lambda each: each.suffix == path.suffix)
    return messages.nearest(path.stem, [], {each.stem: each.name for each in others})
