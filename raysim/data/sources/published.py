"""Files as their publishers offer them: found where they lie, checked, and fetched where that is asked for."""

from __future__ import annotations

import hashlib
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from raysim import whole
from raysim.errors import DataError

_WHOLE_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_PIECES = 256
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Published:
    """One file of a distribution.

    Attributes:
        name: of the file in the source's folder.
        address: where its publisher offers it.
        checksum: "md5:<hex>" or "sha256:<hex>" as published; None: the publisher states none.
        others: names under which the same content may lie there too (unpacked, say), which carry no checksum.
    """

    name: str
    address: str
    checksum: str | None = None
    others: tuple[str, ...] = ()

    def find(self, folder: Path) -> SourceFile:
        """The file in `folder`; DataError naming where to get it if it is not there."""
        for name in (self.name, *self.others):
            if (folder / name).is_file():
                return SourceFile(folder / name)
        also = f" (nor is {' or '.join(self.others)})" if self.others else ""
        raise DataError(
            f"{folder / self.name} is missing{also}: it is published at {self.address}; put it there, or let "
            f"`raysim data prepare --download` do so"
        )

    def fetch(self, folder: Path) -> Path | None:
        """Download into `folder`, whole and with the right checksum or not at all; None where it is there already.

        Raises:
            DataError: the address does not answer, or with other content.
        """
        if any((folder / name).is_file() for name in (self.name, *self.others)):
            return None
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with whole.aside(folder / self.name) as partial:
                with urllib.request.urlopen(self.address, timeout=60) as answer, partial.open("wb") as file:
                    shutil.copyfileobj(answer, file, _PIECE_BYTES)
                    expected = answer.headers.get("Content-Length")
                if expected is not None and partial.stat().st_size != int(expected):
                    raise DataError(f"{self.address}: expected {expected} bytes, found {partial.stat().st_size}")
                self.check(partial)
        except (urllib.error.URLError, OSError) as error:
            raise DataError(f"{self.address} cannot be fetched: {error}") from error
        return folder / self.name

    def check(self, path: Path) -> None:
        """DataError unless the file has the published checksum, where there is one."""
        if self.checksum is None:
            return
        kind, _, expected = self.checksum.partition(":")
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != expected:
            raise DataError(f"{self.name} from {self.address}: expected {kind} {expected}, found {found}")


@dataclass(frozen=True)
class SourceFile:
    """A file of a source as it lies on disk."""

    path: Path

    @cached_property
    def digest(self) -> str:
        """Digest of the content, in hex.

        Of more than 1 GiB only the length and 256 pieces of 1 MiB at even distances are read: tens of gigabytes would
        take minutes before every run.
        """
        hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            if size <= _WHOLE_BYTES:
                while piece := file.read(_PIECE_BYTES):
                    hasher.update(piece)
                return hasher.hexdigest()
            hasher.update(str(size).encode())
            for index in range(_PIECES):
                file.seek((size - _PIECE_BYTES) * index // (_PIECES - 1))
                hasher.update(file.read(_PIECE_BYTES))
        return hasher.hexdigest()
