"""Locates this machine's cache, and computes the checksums of copied files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_root() -> Path:
    """Return $RAYSIM_CACHE, else raysim in $XDG_CACHE_HOME, else ~/.cache/raysim."""
    if root := os.environ.get("RAYSIM_CACHE"):
        return Path(root).expanduser()
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root).expanduser() / "raysim"
    return Path.home() / ".cache" / "raysim"


def datasets() -> Path:
    """Return this machine's folder of prepared datasets and of copies."""
    return cache_root().absolute() / "datasets"


_CHECKSUM_BYTES = 16


def hasher() -> hashlib.blake2b:
    """Return a hasher for streamed content: blake2b with 16 bytes."""
    return hashlib.blake2b(digest_size=_CHECKSUM_BYTES)


def checksum(path: Path) -> str:
    """Return the checksum of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, hasher).hexdigest()
