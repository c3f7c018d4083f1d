"""Finds, checks and downloads published files."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import logging
import urllib.request
import zlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raysim.data.sources.editions import instead
from raysim.errors import DataError, MissingFileError
from raysim.storage import atomic, disk
from raysim.storage.reading import parsing, regular

log = logging.getLogger("raysim")

_digested: ContextVar[list[SourceFile] | None] = ContextVar("digested", default=None)
"""The files whose digests are taken in a block of `digested`."""

_WHOLE_BYTES = 1 << 30
_PIECE_BYTES = 1 << 20
_PIECES = 256
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Published:
    """One file of a distribution.

    Attributes:
        name: of the file in the source's folder.
        address: where its publisher offers it; empty: nowhere, it is the user's own.
        checksum: "md5:<hex>" or "sha256:<hex>" as published; None: the publisher states none.
        others: other accepted names. Of these only `name`.gz is compared with checksum and size.
        size_bytes: as published; None: not known.
        not_meant: known files of that name of other sources, which are refused: checksum, and the keys that read it.
    """

    name: str
    address: str
    checksum: str | None = None
    others: tuple[str, ...] = ()
    size_bytes: int | None = None
    not_meant: tuple[tuple[str, str], ...] = ()

    def find(self, folder: Path) -> SourceFile:
        """Return the file in `folder`, as `here`; MissingFileError with its address if it is missing."""
        if (file := self.here(folder)) is not None:
            return file
        also = f" (nor is {' or '.join(self.others)})" if self.others else ""
        there = instead(folder, (self.name, *self.others))
        raise MissingFileError(
            f"{there}{folder / self.name} is missing{also}: it is published at {self.address}; put it there"
        )

    def here(self, folder: Path) -> SourceFile | None:
        """Return the file in `folder`; None if it is missing.

        Content that differs from the published one is accepted with a warning: it may be a part on purpose, or another
        edition.

        Raises:
            DataError: it is the published file of another source.
        """
        for name in (self.name, *self.others):
            path = folder / name
            if path.is_file():
                if (problem := self._unlike_on_disk(path)) is not None:
                    log.warning(
                        "%s is not the published file but a part of it, another edition, or packed anew: %s",
                        path,
                        problem,
                    )
                return SourceFile(path)
        return None

    def fetch(self, folder: Path) -> Path | None:
        """Download into `folder`, whole and with the right checksum or not at all; None if the file exists.

        A warning says if nothing tells whether the answer was whole.

        Raises:
            DataError: the address does not answer, or sends other content.
            DiskError: the folder or the file cannot be written.
        """
        if any((folder / name).is_file() for name in (self.name, *self.others)):
            return None
        disk.make_folder(folder)
        atomic.sweep(folder)
        with atomic.aside(folder / self.name) as partial:
            with partial.open("wb") as file:
                file.writelines(_sent(self.address, self.checksum is not None or self.size_bytes is not None))
            self.check(partial)
        return folder / self.name

    def check(self, path: Path) -> None:
        """Raise DataError unless the file has the published size and checksum, as far as they are known."""
        if (problem := self._unlike(path, packed=False)) is not None:
            raise DataError(f"{self.name} from {self.address}: {problem}")

    def _unlike_on_disk(self, path: Path) -> str | None:
        packed = path.name == f"{self.name}.gz"
        if path.name != self.name and not packed:
            return None
        try:
            return self._unlike(path, packed)
        except (OSError, EOFError, zlib.error):
            return None  # the reader of the content reports the damage

    def _unlike(self, path: Path, packed: bool) -> str | None:
        """Return the difference from the published file, if any; without size and checksum the file is not read."""
        if self.size_bytes is not None:
            size = _unpacked_bytes(path, self.size_bytes) if packed else path.stat().st_size
            if size != self.size_bytes:
                more = "more" if packed and size > self.size_bytes else f"{size:,}"
                return f"expected {self.size_bytes:,} bytes, found {more}"
        if self.checksum is not None:
            kind, _, expected = self.checksum.partition(":")
            hasher = hashlib.new(kind)
            for piece in _pieces(path, packed):
                hasher.update(piece)
            for other, keys in self.not_meant:
                if other == f"{kind}:{hasher.hexdigest()}":
                    raise DataError(f"{path} is read by {keys}: set that, or name another folder")
            if hasher.hexdigest() != expected:
                return f"expected {kind} {expected}, found {hasher.hexdigest()}"
        return None


class _WithinHttp(urllib.request.HTTPRedirectHandler):
    """Follows an answer that names another address, if that is one of HTTP too: urllib would also go on by FTP."""

    def redirect_request(self, *given: Any) -> urllib.request.Request | None:
        there: str = given[-1]
        if urlsplit(there).scheme not in ("http", "https"):
            raise http.client.HTTPException(f"it leads to {there}")
        return super().redirect_request(*given)


def _sent(address: str, is_checked: bool) -> Iterator[bytes]:
    """Yield what an address sends, in pieces.

    Args:
        address: of the file.
        is_checked: whether the caller compares what was sent with what is published.

    Raises:
        DataError: it does not answer, sends something else than HTTP, or fewer or more bytes than it says; or what it
            sends is packed, and not known otherwise.
    """
    try:
        with urllib.request.build_opener(_WithinHttp).open(address, timeout=60) as answer:
            if answer.status not in (None, http.client.OK, http.client.NON_AUTHORITATIVE_INFORMATION):
                # Such as a part of the file (206), which nobody asked for. Proxies send 203; file:// has no status.
                raise http.client.HTTPException(f"200 OK, and got {answer.status} {answer.reason}")
            lengths, found = set(answer.headers.get_all("Content-Length", ())), 0
            expected = _length(lengths)
            coding = answer.headers.get("Transfer-Encoding", "chunked")
            if coding.strip().lower() not in ("chunked", "identity"):
                # It would be given as it is sent, with the lengths of its pieces.
                raise http.client.HTTPException(f"it is sent as {coding}, which nobody asked for")
            encoding = answer.headers.get("Content-Encoding", "identity")
            if encoding != "identity" and not is_checked:
                # Some servers say so of a file that is packed as it is published, which its checksum tells.
                raise http.client.HTTPException(f"it is packed as {encoding}, which nobody asked for")
            # The pieces of a chunked answer have their lengths, and the last one is marked.
            is_open = expected is None and not getattr(answer, "chunked", False)
            while piece := answer.read(_PIECE_BYTES):
                found += len(piece)
                yield piece
    except OSError as error:
        raise DataError(f"{address} cannot be fetched: {error}") from error
    except (http.client.HTTPException, ValueError) as error:
        # Of a server that breaks the protocol, http.client raises errors of its own, and ValueError for odd numbers.
        raise DataError(
            f"{address} cannot be fetched: expected a whole answer in HTTP: {str(error).strip()}"
        ) from error
    if expected not in (None, found):
        raise DataError(f"{address}: expected {expected} bytes, found {found}")
    if is_open and not is_checked:
        log.warning(
            "%s may have been cut short: it has %s bytes, and neither its publisher nor the server says how many there "
            "are",
            address,
            f"{found:,}",
        )


def _length(said: Collection[str]) -> int | None:
    """Return the length that an answer states; None if it states none. ValueError if it is no number, or several."""
    if not said:
        return None
    length = " and ".join(sorted(said))
    if not (length.isascii() and length.strip().isdigit()):
        raise ValueError(f"one length in bytes, and got {length!r:.40}")
    return int(length)


def _unpacked_bytes(path: Path, most: int) -> int:
    """Return to how many bytes a gzip file unpacks; if it is more than `most`, some number above that."""
    found = 0
    for piece in _pieces(path, packed=True):
        found += len(piece)
        if found > most:
            # A small file may unpack to any number, for as long as that takes.
            break
    return found


def _pieces(path: Path, packed: bool) -> Iterator[bytes]:
    with gzip.open(path) if packed else path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


@dataclass(frozen=True)
class SourceFile:
    """A file of a source on disk.

    Raises:
        DataError: there is no file, or something else in its place.
    """

    path: Path

    def __post_init__(self) -> None:
        regular(self.path, DataError)

    def reading(self, expected: str) -> AbstractContextManager[None]:
        """Turn whatever a parser raises in the block into a DataError that names the file; see `parsing`."""
        return parsing(self.path, expected, DataError, verdict="")

    @cached_property
    def digest(self) -> str:
        """Digest of the content, in hex.

        Of a file above 1 GiB only the length and 256 pieces of 1 MiB at even distances are read: tens of gigabytes
        would take minutes before every run.
        """
        if (known := _digested.get()) is not None:
            known.append(self)
        return self._digest()

    def check_unchanged(self) -> None:
        """Raise DataError if the file has another content than when its digest was taken."""
        if self._digest() != self.digest:
            raise DataError(f"{self.path} changed while it was read: try again when nothing writes to it")

    def _digest(self) -> str:
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


Digests = list[str] | dict[str, list[str]]
"""Of a source's files in an order that is always the same, or of any number of files for each split."""


@contextmanager
def digested() -> Iterator[list[SourceFile]]:
    """Yield a list that receives each file whose digest is taken inside the block.

    A digest is part of what a source was prepared from. Whoever reads a file after its digest was taken checks behind
    the last read that the file is still the same.
    """
    files: list[SourceFile] = []
    before = _digested.set(files)
    try:
        yield files
    finally:
        _digested.reset(before)
