"""The checksum of files that travel: blake2b with 16 bytes, in hex."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BYTES = 16


def hasher() -> hashlib.blake2b:
    """For content that streams by."""
    return hashlib.blake2b(digest_size=_BYTES)


def checksum(path: Path) -> str:
    """Of a file that is there."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, hasher).hexdigest()
