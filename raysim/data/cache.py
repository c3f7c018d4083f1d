"""Prepared datasets, kept by content address: the same sources and settings are prepared once per machine.

With a store ($RAYSIM_STORE), once for all machines: what one has prepared the others fetch.
"""

from __future__ import annotations

import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysim.data.copies import datasets
from raysim.data.dataset import FederatedDataset
from raysim.data.fingerprint import address_digest
from raysim.data.manifest import FORMAT
from raysim.data.store import offer, store, take
from raysim.errors import DataError

log = logging.getLogger("raysim")


def prepared(address: dict[str, Any], build: Callable[[Path], None]) -> FederatedDataset:
    """The dataset at an address: opened where it is already there, else fetched from the store, else built once.

    Building happens in a hidden folder that is renamed when complete, so two processes may build at once: one's folder
    stays, and both open that. An entry that does not open is replaced, with a warning.

    Args:
        address: JSON-able; everything that determines the content (the format's version is added here).
        build: writes a dataset to the folder path it is given, which does not exist yet.

    Raises:
        DataError: from `build`, or if what it built does not open; or what the store has is damaged.
        RemoteError: there is a store, and it does not answer.
    """
    entry = datasets() / address_digest({"format": FORMAT, **address})
    if entry.exists():
        try:
            return FederatedDataset.open(entry)
        except DataError as error:
            log.warning("the cached dataset %s is damaged and is made again: %s", entry, error)
    shared = store()
    if shared is not None and (copy := take(entry.name, None, shared)) is not None:
        return FederatedDataset.open(copy)
    staging = entry.parent / f".{entry.name}.{uuid.uuid4().hex}"
    try:
        build(staging)
        made = _settle(staging, entry)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if shared is not None:
        offer(entry, shared)
    return made


def _settle(staging: Path, entry: Path) -> FederatedDataset:
    """Put `staging` at `entry`, unless a good entry is there by now."""
    while True:
        try:
            staging.rename(entry)
        except OSError:
            if not entry.exists():
                raise
            try:
                return FederatedDataset.open(entry)
            except DataError:
                damaged = entry.parent / f".{entry.name}.{uuid.uuid4().hex}"
                try:
                    entry.rename(damaged)
                except FileNotFoundError:
                    continue  # another process is replacing it too
                shutil.rmtree(damaged, ignore_errors=True)
        else:
            return FederatedDataset.open(entry)
