"""Where this machine keeps what can be made or fetched again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$RAYSIM_CACHE, else raysim in $XDG_CACHE_HOME, else ~/.cache/raysim."""
    if root := os.environ.get("RAYSIM_CACHE"):
        return Path(root).expanduser()
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root).expanduser() / "raysim"
    return Path.home() / ".cache" / "raysim"
