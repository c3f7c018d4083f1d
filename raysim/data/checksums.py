"""Computes and checks the CRC-32 of a dataset's files and of clients' rows, so that damage at rest is noticed.

An index, and a split of a single record batch, are checked whole when they are opened: their files are small, and every
row is in use. The rows of a larger split are checked client by client, when they are first read: so nothing is read
from the disk that is not used anyway, whatever the size of the split.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.data.manifest import Manifest, SplitFiles, data_file, index_file
from raysim.errors import DataError, within
from raysim.storage.cache import datasets

_PIECE_BYTES = 1 << 20


def of_rows(rows: npt.NDArray[Any], before: int = 0) -> int:
    """Return the CRC-32 of rows as stored, after those with the CRC-32 `before`.

    >>> f"{of_rows(np.frombuffer(b'6789', np.uint8), of_rows(np.frombuffer(b'12345', np.uint8))):08x}"
    'cbf43926'
    """
    return zlib.crc32(np.ascontiguousarray(rows).data.cast("B"), before) if rows.size else before


def of_file(path: Path) -> int:
    """Return the CRC-32 of a file."""
    found = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            found = zlib.crc32(piece, found)
    return found


def check_split(folder: Path, name: str, files: SplitFiles) -> None:
    """Check a split's index, and its rows if they are in one record batch.

    Raises:
        DataError: a file is damaged; says what to do.
    """
    _check_file(folder / index_file(name), files.index_crc32)
    if files.in_one_batch:
        _check_file(folder / data_file(name), files.data_crc32)


def check_small(folder: Path, manifest: Manifest) -> None:
    """Check every split, as `check_split`."""
    for name, files in manifest.splits.items():
        check_split(folder, name, files)


def advice(folder: Path) -> str:
    """Return what to do about a damaged file in a dataset's folder, as a sentence."""
    if folder.parent in (datasets(), datasets().resolve()):
        return f"Delete the folder {folder}: raysim prepares or fetches it again."
    return f"Restore the folder {folder} from a copy, or write the dataset again."


def _check_file(path: Path, expected: int) -> None:
    try:
        found = of_file(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {within(error)}. {advice(path.parent)}") from error
    if found != expected:
        raise DataError(
            f"{path} is damaged: expected the CRC-32 {expected:08x}, found {found:08x}. {advice(path.parent)}"
        )
