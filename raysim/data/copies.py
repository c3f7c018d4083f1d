"""Fetches a machine's copy of a prepared dataset: once, checked by checksum, mapped by all processes."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from raysim.data.checksums import check_small
from raysim.data.manifest import FILE, Manifest, parse, read_manifest
from raysim.errors import DataError
from raysim.storage import atomic, disk, lock
from raysim.storage.cache import datasets, hasher
from raysim.storage.reading import MOST_BYTES

log = logging.getLogger("raysim")


class CopySource(Protocol):
    """Where a dataset's files can be read: a store, or another machine."""

    @property
    def uri(self) -> str:
        """The source's name in errors."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """Yield a file's content in pieces."""
        ...


def fetch_copy(key: str, fingerprint: str | None, source: CopySource) -> Path:
    """Return the folder of this machine's copy; fetch the copy if it is missing or not whole.

    Other processes that call this wait meanwhile.

    Args:
        key: the folder's name.
        fingerprint: of the dataset; None: any.
        source: read only if something is missing.

    Raises:
        DataError: a file differs from the source's description in size or checksum, or the dataset has another
            fingerprint; names file, expected and found.
        DiskError: the copy cannot be written, or a damaged one not be replaced.
    """
    entry = datasets() / key
    with ExitStack() as held:
        with disk.writing(entry):
            held.enter_context(lock.alone(entry.parent / f".{entry.name}.lock"))
        if entry.exists():
            try:
                manifest = read_manifest(entry)
                if fingerprint in (None, manifest.fingerprint):
                    check_small(entry, manifest)
                    return entry
                why = "it is another dataset"
            except DataError as error:
                why = str(error)
            log.warning("the copy %s is damaged and is fetched again: %s", entry, why)
        atomic.sweep(entry.parent)
        with atomic.folder_aside(entry) as staging:
            _fetch(staging, fingerprint, source)
            if entry.exists():
                with disk.deleting(entry):
                    shutil.rmtree(entry)
            with disk.writing(entry):
                staging.rename(entry)
    return entry


def describe(source: CopySource) -> tuple[bytes, Manifest]:
    """Return the description of a source's dataset, as bytes and parsed."""
    text = b""
    for piece in source.read(FILE):
        text += piece
        if len(text) > MOST_BYTES:
            raise DataError(f"{source.uri}/{FILE} is damaged: expected at most {MOST_BYTES:,} bytes, found more")
    return text, parse(text, f"{source.uri}/{FILE}")


def _fetch(folder: Path, fingerprint: str | None, source: CopySource) -> None:
    text, manifest = describe(source)
    if fingerprint not in (None, manifest.fingerprint):
        raise DataError(
            f"{source.uri} must hold the dataset with fingerprint {fingerprint}, but holds {manifest.fingerprint}"
        )
    for name, (expected_bytes, expected) in manifest.files.items():
        digest, found_bytes = hasher(), 0
        with disk.writing(folder / name, expected_bytes), (folder / name).open("wb") as file:
            for piece in source.read(name):
                digest.update(piece)
                found_bytes += file.write(piece)
                if found_bytes > expected_bytes:
                    break
            file.flush()
            os.fsync(file.fileno())
        if (found_bytes, digest.hexdigest()) != (expected_bytes, expected):
            raise DataError(
                f"{source.uri}/{name} is damaged: expected {expected_bytes} bytes with blake2b {expected}, as {FILE} "
                f"says, found {found_bytes} bytes with {digest.hexdigest()}"
            )
    with disk.writing(folder / FILE, len(text)):
        (folder / FILE).write_bytes(text)
