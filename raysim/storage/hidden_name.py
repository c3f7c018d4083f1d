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
    """
    return Path(*(_HIDDEN.sub(r"\1", part) if is_hidden(part) else part for part in path.parts))
