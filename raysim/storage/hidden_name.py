"""Names what is written beside its place: hidden, and unique over machines."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

_HIDDEN = re.compile(r"\.(.+)\.[0-9a-f]{32}", re.ASCII)


def hidden(name: str) -> str:
    """Return a new name for what will be renamed to `name`."""
    return f".{name}.{uuid.uuid4().hex}"


def is_hidden(name: str) -> bool:
    """Whether the name is one of `hidden`."""
    return _HIDDEN.fullmatch(name) is not None


def shown(path: Path) -> Path:
    """Return a path for people: what lies beside its place, or in a folder beside its own, is named by that place.

    >>> shown(Path("report", hidden("figures"), "curve.png")).as_posix()
    'report/figures/curve.png'
    >>> shown(Path("datasets", hidden("key"), "key", "train.arrow")).as_posix()
    'datasets/key/train.arrow'
    """
    parts, of_folder = [], None
    for part in path.parts:
        name = _HIDDEN.sub(r"\1", part)
        # What is moved out of a folder beside its place has the name of that place already.
        if name != of_folder:
            parts.append(name)
        of_folder = name if is_hidden(part) else None
    return Path(*parts)
