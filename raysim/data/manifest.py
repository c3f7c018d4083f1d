"""Defines `dataset.json`, which lists the files of a dataset's folder and their sizes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import Field as Key
from pydantic import model_validator

from raysim.config.section import Section
from raysim.data.field import Field
from raysim.errors import DataError
from raysim.storage import atomic, disk, sealed
from raysim.storage.reading import content, parsing, regular

FILE = "dataset.json"
FORMAT: Literal[3] = 3


THEN = (
    f"Nothing of it was kept. First {disk.REMEDY}, or set RAYSIM_CACHE to a folder of another disk, then do it again."
)
"""How to go on where a dataset cannot be written: most are in the cache."""


def data_file(split: str) -> str:
    """Return the name of the file with a split's rows, sorted by client."""
    return f"{split}.arrow"


def index_file(split: str) -> str:
    """Return the name of the file with each client's id, rows and checksums, in order of position."""
    return f"{split}.index.arrow"


class SplitFiles(Section):
    """One split's two files. Every record batch of the rows has `batch_rows` rows, the last one possibly fewer.

    data_blake2b, index_blake2b: checksums in hex (storage/cache.py), checked after a file was copied. data_crc32,
    index_crc32: checked when a file is opened (data/checksums.py).
    """

    clients: int = Key(ge=1)
    rows: int = Key(ge=0)
    batch_rows: int = Key(ge=1)
    data_bytes: int
    data_blake2b: str
    data_crc32: int
    index_bytes: int
    index_blake2b: str
    index_crc32: int

    @property
    def in_one_batch(self) -> bool:
        """Whether all rows are in one record batch."""
        return 0 < self.rows <= self.batch_rows


class Manifest(Section):
    """The dataset's description; `checksum` seals its file (storage/sealed.py).

    key: the name of its folder among prepared datasets, which says from what it was prepared (data/cache.py); None
    elsewhere.
    """

    checksum: str = sealed.BLANK
    format: Literal[3] = FORMAT
    x: Field
    y: Field
    num_classes: int | None
    fingerprint: str
    key: str | None = None
    splits: dict[Literal["train", "validation", "test"], SplitFiles]
    provenance: dict[str, str] = Key(default_factory=dict)

    @model_validator(mode="after")
    def _has_train(self) -> Manifest:
        if "train" not in self.splits:
            raise ValueError(f"splits must include 'train', but are {list(self.splits)}")
        return self

    @property
    def files(self) -> dict[str, tuple[int, str]]:
        """Size in bytes and checksum by name, of every file except the description."""
        found = {}
        for split, files in self.splits.items():
            found[data_file(split)] = files.data_bytes, files.data_blake2b
            found[index_file(split)] = files.index_bytes, files.index_blake2b
        return found

    def of(self, split: str) -> SplitFiles:
        """Return the files of an existing split."""
        return {str(name): files for name, files in self.splits.items()}[split]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write a folder's description, aside and in one step."""
    content = manifest.model_dump_json(indent=2).encode() + b"\n"
    atomic.write(folder / FILE, lambda file: sealed.write(file, content), flushed=True, then=THEN)


def read_manifest(folder: Path) -> Manifest:
    """Read and check a folder's description and the sizes of the files it names.

    Raises:
        DataError: naming the file, what was expected and what was found.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        raise DataError(f"{path} is missing: {folder} is not a prepared dataset, or not reachable from this machine")
    manifest = parse(content(path, DataError), path)
    for name, (expected_bytes, _) in manifest.files.items():
        _check_size(folder / name, expected_bytes)
    return manifest


def parse(text: bytes, path: object) -> Manifest:
    """Parse a description; `path` names it in the DataError if it is not one, or is damaged."""
    if (why := sealed.flaw(text)) is not None:
        raise DataError(f"{path} {why}. Restore the dataset from a copy, or write it again.")
    with parsing(path, f"a dataset description of format {FORMAT}", DataError):
        return Manifest.model_validate_json(text)


def _check_size(path: Path, expected_bytes: int) -> None:
    if not os.path.lexists(path):
        raise DataError(f"{path} is missing: expected {expected_bytes} bytes, as {FILE} says")
    found_bytes = regular(path, DataError).stat().st_size
    if found_bytes != expected_bytes:
        raise DataError(f"{path} is damaged: expected {expected_bytes} bytes, as {FILE} says, found {found_bytes}")
