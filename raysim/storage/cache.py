"""Where this machine keeps what can be made or fetched again, and the checksum of files that travel."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_root() -> Path:
    """$RAYSIM_CACHE, else raysim in $XDG_CACHE_HOME, else ~/.cache/raysim."""
    if root := os.environ.get("RAYSIM_CACHE"):
        return Path(root).expanduser()
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root).expanduser() / "raysim"
    return Path.home() / ".cache" / "raysim"


_CHECKSUM_BYTES = 16


def hasher() -> hashlib.blake2b:
    """The checksum of content that streams by: blake2b with 16 bytes."""
    return hashlib.blake2b(digest_size=_CHECKSUM_BYTES)


def checksum(path: Path) -> str:
    """The checksum of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, hasher).hexdigest()
