"""Accesses a folder on any file system that pyarrow opens; uploads files whole or not at all, reads them in pieces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from raysim.errors import RemoteError
from raysim.storage import atomic
from raysim.storage.hidden_name import hidden
from raysim.storage.inside import flaw, inside
from raysim.storage.reading import MOST_BYTES, regular
from raysim.storage.remote.uri import uri_of

PIECE_BYTES = 8 << 20

_ATOMIC = frozenset({"s3", "gcs", "abfs"})
"""File systems where an object appears with its last byte; elsewhere a file is written aside and renamed."""

_ADVICE = {
    ("Cannot parse URI",): (
        "In a URI a blank is written %20, % is %25, and other marks and letters have codes, too: Path(...).as_uri() "
        "writes them."
    ),
    ("NO_SUCH_BUCKET", "ContainerNotFound", "BucketNotFound"): "Make the bucket first: raysim makes none.",
    ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE", "InvalidAccessKey", "credential", "403", "401"): (
        "Credentials come from the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for one of "
        "~/.aws/credentials) or from the machine's role: see that they are there, and that they may do this."
    ),
    ("NETWORK_CONNECTION", "connect", "resolve host", "timed out", "Timeout"): (
        "Nothing answers there: for a server that is not Amazon's set AWS_ENDPOINT_URL to its http://host:port."
    ),
}


class Remote:
    """A folder at a URI. It need not exist: an upload creates it.

    Args:
        uri: such as s3://bucket/runs/x; see raysim/storage/remote/uri.py.

    Raises:
        RemoteError: pyarrow has no such scheme, or the URI is malformed. Nothing is accessed yet.
    """

    def __init__(self, uri: str) -> None:
        found = uri_of(uri)
        if found is None:
            raise RemoteError(f"{uri!r} is not a URI: expected one such as s3://bucket/folder or file:///folder.")
        self.uri = found
        self._files, root = _opened(found)
        self._root = PurePosixPath(root)

    def below(self, name: str) -> Remote:
        """Return a folder within this one."""
        if (why := flaw(name)) is not None:
            raise RemoteError(f"{self.uri} has no folder {name!r}: the name {why}.")
        plain, question, query = self.uri.partition("?")
        return Remote(f"{plain}/{name}{question}{query}")

    def check(self) -> None:
        """Raise RemoteError unless the file system answers and has the bucket; call it before long work."""
        bucket = self._root.parts[0] if self._root.parts else ""
        with self._reaching("looking for", "the bucket"):
            if self._files.type_name in _ATOMIC and self._files.get_file_info(bucket).type == fs.FileType.NotFound:
                raise FileNotFoundError(f"NO_SUCH_BUCKET: there is no {bucket!r}")

    def read(self, name: str) -> Iterator[bytes]:
        """Yield a file's content in pieces.

        Raises:
            RemoteError: the file is missing, or nothing answers.
        """
        with self._reaching("reading", name), self._opened(name) as stream:
            while piece := stream.read(PIECE_BYTES):
                yield piece

    def has(self, name: str) -> bool:
        """Return whether the file exists."""
        with self._reaching("looking for", name):
            return bool(self._files.get_file_info(self._at(name)).type == fs.FileType.File)

    def stamp(self, name: str) -> str | None:
        """Return what changes with a file's content, as far as the file system says; None if it is missing.

        Size and time alone may stay: a copy can keep the time of its original, and some stores count seconds. So on a
        disk inode and time of change belong to it, and from a store its tag of the content.
        """
        with self._reaching("looking for", name):
            found = self._files.get_file_info(self._at(name))
            if found.type != fs.FileType.File:
                return None
            if self._files.type_name == "local":
                status = os.stat(self._at(name))
                more = f"{status.st_ino} {status.st_ctime_ns}"
            else:
                with self._opened(name) as stream:
                    more = _tag(stream.metadata())
        return f"{found.size} {found.mtime_ns} {more}"

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files in the folder, by name."""
        if self._files.type_name == "local":
            # Which follows no links: they may lead round in circles.
            return _sizes_here(Path(self._root))
        with self._reaching("listing", "the files"):
            found = self._files.get_file_info(fs.FileSelector(str(self._root), allow_not_found=True, recursive=True))
            sizes = {PurePosixPath(each.path): each.size for each in found if each.type == fs.FileType.File}
        if odd := next((path for path in sizes if not path.is_relative_to(self._root)), None):
            raise RemoteError(f"{self.uri}: the store was asked for the files in it, and names {str(odd)!r}.")
        return {path.relative_to(self._root).as_posix(): size for path, size in sizes.items()}

    def beginning_with(self, start: str) -> list[str]:
        """Return the names of the files in the folder itself, not below it, that begin so."""
        with self._reaching("listing", "the files"):
            if self._files.type_name == "local":
                # A disk holds names, too, that are not UTF-8, which pyarrow does not read.
                return [name for name in _names_here(Path(self._root)) if name.startswith(start)]
            found = self._files.get_file_info(fs.FileSelector(str(self._root), allow_not_found=True))
            return [each.base_name for each in found if each.base_name.startswith(start)]

    def find(self, name: str) -> bytes | None:
        """Return a small file's content; None if it is missing.

        Raises:
            RemoteError: it is larger than a record can be, or nothing answers.
        """
        with self._reaching("reading", name):
            try:
                with self._opened(name) as stream:
                    content: bytes = stream.read(MOST_BYTES + 1)
            except FileNotFoundError:
                return None
        if len(content) > MOST_BYTES:
            raise RemoteError(f"{self.uri}/{name} is damaged: expected at most {MOST_BYTES:,} bytes, found more.")
        return content

    def put(self, file: Path, name: str) -> None:
        """Upload a local file; meanwhile readers see the old file, or none."""
        with self._reaching("writing", name), file.open("rb") as source:
            target = self._to_change(name)
            if self._files.type_name in _ATOMIC:
                self._write(iter(lambda: source.read(PIECE_BYTES), b""), target)
                return
            self._files.create_dir(str(PurePosixPath(target).parent), recursive=True)
            aside = str(PurePosixPath(target).with_name(hidden(PurePosixPath(name).name)))
            try:
                self._write(iter(lambda: source.read(PIECE_BYTES), b""), aside)
                self._files.move(aside, target)
            except BaseException:
                self._forget(aside)
                raise

    def mark(self, name: str) -> None:
        """Write an empty file."""
        with self._reaching("writing", name):
            target = self._to_change(name)
            if self._files.type_name not in _ATOMIC:
                self._files.create_dir(str(PurePosixPath(target).parent), recursive=True)
            self._write(iter(()), target)

    def delete(self, name: str) -> None:
        """Remove a file; a missing file is not an error."""
        with self._reaching("deleting", name):
            self._forget(self._to_change(name))

    def sweep(self) -> None:
        """Remove what killed uploads left on a disk; in a store a file appears with its last byte."""
        if self._files.type_name == "local":
            for place, _, _ in os.walk(self._root):
                atomic.sweep(Path(place))

    def _at(self, name: str) -> str:
        if (why := flaw(name)) is not None:
            raise RemoteError(f"{self.uri} has no file {name!r}: the name {why}.")
        return str(self._root / name)

    def _to_change(self, name: str) -> str:
        """Return where a file is written or removed; on a disk no symbolic link may lead out of the folder."""
        place = self._at(name)
        if self._files.type_name == "local":
            inside(Path(self._root), name, self.uri, RemoteError)
        return place

    def _opened(self, name: str) -> Any:
        """Open a file; on a disk a pipe may have its name, and to open that would wait for a writer."""
        place = self._at(name)
        if self._files.type_name == "local" and os.path.lexists(place):
            regular(Path(place), RemoteError)
        return self._files.open_input_stream(place)

    def _write(self, pieces: Iterator[bytes], target: str) -> None:
        with self._files.open_output_stream(target) as stream:
            for piece in pieces:
                stream.write(piece)

    def _forget(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_file(path)

    @contextmanager
    def _reaching(self, doing: str, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            # pyarrow reads names in UTF-8 only.
            raise RemoteError(f"{doing} {name} in {self.uri} failed: {_message(error)}") from error


def _names_here(root: Path) -> list[str]:
    try:
        return os.listdir(root)
    except FileNotFoundError:
        return []


def _sizes_here(root: Path) -> dict[str, int]:
    found = {}
    for place, _, names in os.walk(root):
        for path in (Path(place, name) for name in names):
            with suppress(OSError):
                found[path.relative_to(root).as_posix()] = path.stat().st_size
    return found


def _tag(metadata: dict[str | bytes, bytes] | None) -> str:
    """Return a store's tag of a file's content; empty if it has none."""
    for name, value in (metadata or {}).items():
        if (name.decode() if isinstance(name, bytes) else name).lower() == "etag":
            return value.decode()
    return ""


def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    elsewhere = uri.startswith("s3://") and "AWS_ENDPOINT_URL" in os.environ
    if elsewhere and "region=" not in uri and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & set(os.environ):
        # Without a region pyarrow asks Amazon for the bucket's region, even for another server.
        uri += ("&" if "?" in uri else "?") + "region=us-east-1"
    try:
        files, root = fs.FileSystem.from_uri(uri)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise RemoteError(
            f"{uri} cannot be opened: {_message(error)} pyarrow opens s3://bucket/folder, gs://bucket/folder, "
            f"abfs://container@account/folder, hdfs://host/folder and file:///folder."
        ) from error
    return files, root


def _message(error: Exception) -> str:
    """Return the first line of the file system's error, with advice."""
    text = (str(error).splitlines() or [repr(error)])[0].rstrip(".")
    for signs, advice in _ADVICE.items():
        if any(sign in text for sign in signs):
            endpoint = os.environ.get("AWS_ENDPOINT_URL")
            tried = f" (AWS_ENDPOINT_URL is {endpoint})" if endpoint and "AWS" in text else ""
            return f"{text}{tried}. {advice}"
    return f"{text}."
