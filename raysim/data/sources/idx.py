"""Reads idx files, the format of MNIST: a big-endian header, then unsigned bytes; packed (gzip) or unpacked."""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raysim.data.sources.packed import unpacked
from raysim.data.sources.published import Published
from raysim.errors import DataError
from raysim.storage.reading import parsing

# 0x08 means unsigned bytes, the last byte is the number of dimensions.
_MAGIC = {1: 2049, 3: 2051}


@dataclass(frozen=True)
class IdxFile:
    """An idx file as it lies on disk."""

    path: Path
    content: bytes

    @classmethod
    def find(cls, folder: Path, published: Published) -> IdxFile:
        """Read the file in `folder`.

        Raises:
            MissingFileError: the file is missing; states where it is published.
            DataError: the file cannot be read.
        """
        path = published.find(folder).path
        with parsing(path, "a file that can be read", DataError, verdict=""):
            return cls(path, path.read_bytes())

    @property
    def digest(self) -> str:
        """Digest of the bytes on disk, in hex."""
        return hashlib.blake2b(self.content, digest_size=16).hexdigest()

    def array(self, num_dimensions: int) -> npt.NDArray[np.uint8]:
        """Decode: labels have 1 dimension, images 3 (examples, rows, columns).

        Raises:
            DataError: the file is truncated, of another kind, or differs in length from its header.
        """
        content = self._unpacked()
        header_bytes = 4 * (1 + num_dimensions)
        if len(content) < header_bytes:
            raise DataError(f"{self.path}: expected a header of {header_bytes} bytes, found {len(content)} bytes")
        magic, *shape = struct.unpack_from(f">{1 + num_dimensions}I", content)
        if magic != _MAGIC[num_dimensions]:
            raise DataError(f"{self.path}: expected the magic number {_MAGIC[num_dimensions]}, found {magic}")
        expected_bytes, found_bytes = math.prod(shape), len(content) - header_bytes
        if found_bytes != expected_bytes:
            raise DataError(
                f"{self.path}: expected {' x '.join(map(str, shape))} = {expected_bytes} bytes after the header, "
                f"found {found_bytes}"
            )
        return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)

    def _unpacked(self) -> bytes:
        if self.path.suffix != ".gz":
            return self.content
        try:
            return unpacked(self.content)
        except (OSError, EOFError, ValueError, zlib.error) as error:
            raise DataError(
                f"{self.path}: expected a whole gzip file, found {len(self.content)} bytes that do not unpack: {error}"
            ) from error
