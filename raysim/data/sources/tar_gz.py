"""Packed archives, read to their end: only there does gzip say whether the content is what was packed."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from raysim.errors import DataError

_PIECE_BYTES = 1 << 20


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the files whose name is wanted, in the archive's order.

    Raises:
        DataError: truncated or damaged; where that shows at the end only, after the last member.
    """
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() and wanted(member.name) else None
                if content is not None:
                    yield member.name, content.read()
            # To tarfile a damaged header is the end of the archive, and nobody would read on to the checksum.
            while stream.read(_PIECE_BYTES):
                pass
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: expected a whole tar.gz archive: {error}") from error
