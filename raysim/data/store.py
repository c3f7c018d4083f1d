"""Reads and fills the store of prepared datasets that machines share: $RAYSIM_STORE, such as s3://bucket/raysim."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from raysim.data.copies import fetch_copy
from raysim.data.manifest import FILE, read_manifest
from raysim.errors import RemoteError
from raysim.storage.remote.remote import Remote

log = logging.getLogger("raysim")


def store_uri() -> str | None:
    """Return the value of $RAYSIM_STORE; None if it is empty or not set."""
    return os.environ.get("RAYSIM_STORE") or None


def store() -> Remote | None:
    """Return the folder that $RAYSIM_STORE names; None if it names none.

    Raises:
        RemoteError: it is no URI that can be opened.
    """
    if (uri := store_uri()) is None:
        return None
    try:
        return Remote(uri)
    except RemoteError as error:
        raise RemoteError(f"The environment variable RAYSIM_STORE cannot be used: {error}") from error


def take(key: str, fingerprint: str | None, remote: Remote) -> Path | None:
    """Return this machine's copy of a dataset in the store; None if the store does not hold it.

    Raises:
        RemoteError: the store does not answer.
        DataError: the store's files are damaged.
    """
    place = remote.below(f"datasets/{key}")
    if place.find(FILE) is None:
        remote.check()
        return None
    return fetch_copy(key, fingerprint, place)


def offer(entry: Path, remote: Remote) -> None:
    """Put a prepared dataset into the store; the description last, so that no reader finds a part."""
    place = remote.below(f"datasets/{entry.name}")
    try:
        for name in (*read_manifest(entry).files, FILE):
            place.put(entry / name, name)
    except RemoteError as error:
        log.warning("%s could not be put into the store: %s", entry, error)
