"""Keeps prepared datasets by content address: each machine prepares the same sources and settings once.

With a store ($RAYSIM_STORE), one machine prepares a dataset and the others fetch it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysim.config.section import replaced
from raysim.data.dataset import FederatedDataset
from raysim.data.fingerprint import address_digest
from raysim.data.manifest import FORMAT, THEN, read_manifest, write_manifest
from raysim.data.store import offer, store, take
from raysim.errors import DataError, DiskError
from raysim.storage import atomic, disk
from raysim.storage.cache import datasets

log = logging.getLogger("raysim")


def open_or_build(address: dict[str, Any], build: Callable[[Path], None]) -> FederatedDataset:
    """Open the dataset at an address if it exists, else fetch it from the store, else build it once.

    The build goes to a hidden folder, which is renamed when complete. So two processes may build at once: one folder
    stays, and both open it. An entry that does not open is replaced, with a warning.

    Args:
        address: JSON-able; everything that determines the content (the format's version is added here).
        build: writes a dataset to a folder path, which does not exist yet.

    Raises:
        DataError: from `build`, or if the result does not open, or if the store's copy is damaged.
        DiskError: the cache cannot be written to, or an entry that does not open cannot be replaced.
        RemoteError: the store does not answer.
    """
    entry = datasets() / address_digest({"format": FORMAT, **address})
    if _is_there(entry):
        try:
            return _opened(entry)
        except DataError as error:
            log.warning("the cached dataset %s cannot be used and is prepared again: %s", entry, error)
    shared = store()
    if shared is not None and (copy := take(entry.name, None, shared)) is not None:
        return _opened(copy)
    atomic.sweep(entry.parent)
    # The folder around it is locked until the rename; the writer's own is not, once the writer is done.
    with atomic.folder_aside(entry) as aside:
        staging = aside / entry.name
        build(staging)
        write_manifest(staging, replaced(read_manifest(staging), key=entry.name))
        dataset = _settle(staging, entry)
    if shared is not None:
        offer(entry, shared)
    return dataset


def _is_there(entry: Path) -> bool:
    try:
        return entry.exists()
    except OSError as error:
        raise DiskError(
            f"{entry} cannot be looked for: {error.strerror}. Allow it, or set RAYSIM_CACHE to another folder."
        ) from error


def _opened(entry: Path) -> FederatedDataset:
    """Open a prepared dataset; DataError unless it says that it was prepared as its folder's name has it."""
    key = read_manifest(entry).key
    if key is None:
        raise DataError(f"{entry} does not say from what it was prepared: an earlier raysim did that")
    if key != entry.name:
        raise DataError(f"{entry} must hold what was prepared as {entry.name}, but holds {key}")
    return FederatedDataset.open(entry)


def _settle(staging: Path, entry: Path) -> FederatedDataset:
    """Put `staging` at `entry`, unless a good entry is there by now."""
    while True:
        try:
            with disk.writing(entry, then=THEN):
                staging.rename(entry)
        except DiskError:
            if not entry.exists():
                raise
            try:
                return _opened(entry)
            except DataError:
                damaged = atomic.beside(entry)
                try:
                    with disk.deleting(entry):
                        entry.rename(damaged)
                except DiskError:
                    if entry.exists():
                        raise
                    continue  # another process is replacing it too
                shutil.rmtree(damaged, ignore_errors=True)
        else:
            return FederatedDataset.open(entry)
