"""A store of prepared datasets that many machines share: $RAYSIM_STORE, such as s3://bucket/raysim."""

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
    """What $RAYSIM_STORE says; None where it says nothing."""
    return os.environ.get("RAYSIM_STORE") or None


def store() -> Remote | None:
    """The folder that $RAYSIM_STORE names; None where it names none."""
    uri = store_uri()
    return None if uri is None else Remote(uri)


def take(key: str, fingerprint: str | None, remote: Remote) -> Path | None:
    """This machine's copy of a dataset in the store; None where the store does not hold it.

    Raises:
        RemoteError: the store does not answer.
        DataError: what it holds is damaged.
    """
    place = remote.below(f"datasets/{key}")
    if place.find(FILE) is None:
        remote.check()
        return None
    return fetch_copy(key, fingerprint, place)


def offer(entry: Path, remote: Remote) -> None:
    """Put a prepared dataset into the store; the description last, so that nobody finds a part of it."""
    place = remote.below(f"datasets/{entry.name}")
    try:
        for name in (*read_manifest(entry).files, FILE):
            place.put(entry / name, name)
    except RemoteError as error:
        log.warning("%s could not be put into the store: %s", entry, error)
