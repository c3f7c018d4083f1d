"""Locates this machine's cache, and computes the checksums of copied files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from raysim.errors import RaysimError
from raysim.storage.remote.uri import check_is_path


def cache_root() -> Path:
    """Return $RAYSIM_CACHE, else raysim in $XDG_CACHE_HOME, else ~/.cache/raysim."""
    if (root := named_folder("RAYSIM_CACHE")) is not None:
        return root
    if (root := named_folder("XDG_CACHE_HOME")) is not None:
        return root / "raysim"
    return Path.home() / ".cache" / "raysim"


def variable() -> str:
    """Return the environment variable by which the cache is where it is."""
    return next((name for name in ("RAYSIM_CACHE", "XDG_CACHE_HOME") if os.environ.get(name)), "HOME")


def named_folder(variable: str) -> Path | None:
    """Return the folder that an environment variable names; None if it is empty or not set.

    Raises:
        RaysimError: it is a URI, or no text in UTF-8, or begins with ~ and the name of a user whom this machine does
            not know.
    """
    if not (name := os.environ.get(variable)):
        return None
    check_is_path(name, f"The folder of the environment variable {variable}")
    try:
        name.encode()
    except UnicodeEncodeError:
        # pyarrow opens no such file, and what lies there would be called damaged.
        raise RaysimError(
            f"The environment variable {variable} is {name!r}, which UTF-8 cannot hold: name another folder."
        ) from None
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise RaysimError(
            f"The environment variable {variable} is {name!r}, but this machine knows no such user: write the folder's "
            f"whole path."
        ) from None


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
