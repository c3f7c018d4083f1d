"""Fetches and unpacks published archives, or reads them member by member."""

from __future__ import annotations

import filecmp
import gzip
import io
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import IO

from raysim.data.sources.published import Published
from raysim.errors import DataError, DiskError
from raysim.storage import atomic, disk
from raysim.storage.reading import regular

_PIECE_BYTES = 1 << 20

_MOST_BYTES = 1 << 30
"""Of what is read of a file, all members together; CIFAR's have 185 MB, EMNIST's images 550 MB."""

_REFUSED = (ValueError, RuntimeError, NotImplementedError, OverflowError, MemoryError)
"""What the standard library raises for members that are encrypted, packed in an unknown way, or badly described, also
with sizes that no memory has."""


@dataclass(frozen=True)
class Packed:
    """Files of one archive.

    Attributes:
        address: where its publisher offers the archive, a .zip, .tar.gz or .tar.bz2.
        names: the wanted files, by file name in any folder of the archive.
        checksum: of the archive, as for `Published`.
    """

    address: str
    names: tuple[str, ...]
    checksum: str | None = None

    def fetch(self, folder: Path) -> list[Path]:
        """Download the archive and unpack the wanted files into `folder`, each file whole.

        Returns:
            Those that were missing.

        Raises:
            DataError: the address does not answer, or the archive is damaged or holds other files; or some of the files
                are there with another content, which stays.
            DiskError: the folder or a file cannot be written.
        """
        if all((folder / name).is_file() for name in self.names):
            return []
        disk.make_folder(folder)
        # Within the folder, because a rename is atomic only there.
        beside = folder / self.names[0]
        atomic.sweep_folders(beside)
        with atomic.folder_aside(beside) as place, disk.writing(folder):
            archive = Published(self.address.rpartition("/")[2], self.address, self.checksum).fetch(place)
            assert archive is not None
            found = self._unpack(archive, place)
            if lacking := sorted(set(self.names) - set(found)):
                raise DataError(
                    f"{self.address}: expected the files {', '.join(lacking)} in it, found none of that name"
                )
            missing = [name for name in self.names if not os.path.lexists(folder / name)]
            for name in sorted(set(self.names).difference(missing)):
                if not filecmp.cmp(found[name], regular(folder / name, DataError), shallow=False):
                    raise DataError(
                        f"{folder / name} differs from the file of that name in {self.address}, of which "
                        f"{', '.join(missing)} would be fetched: move {name} away to fetch it, too"
                    )
            for name in missing:
                os.replace(found[name], folder / name)
        return [folder / name for name in missing]

    def _unpack(self, archive: Path, place: Path) -> dict[str, Path]:
        found: dict[str, Path] = {}
        try:
            for name, content in _members(archive):
                if Path(name).name in self.names:
                    if Path(name).name in found:
                        raise DataError(f"{self.address}: expected one {Path(name).name} in it, found several")
                    found[Path(name).name] = target = place / f"{len(found)}.unpacked"
                    with content, disk.writing(target), target.open("wb") as file:
                        shutil.copyfileobj(content, file, _PIECE_BYTES)
        except DiskError:
            raise
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, LZMAError, *_REFUSED) as error:
            raise DataError(f"{self.address}: expected a whole archive: {error}") from error
        return found


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            for entry in opened.infolist():
                # Not `is_dir`, which takes no empty name.
                if not entry.filename.endswith("/"):
                    yield entry.filename, opened.open(entry)
        return
    with closing(tarfile.open(archive, "r:*")) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content
        # For tarfile an empty header is the end of the archive, and so is a damaged one: checksums stand behind it.
        while tar.fileobj is not None and tar.fileobj.read(_PIECE_BYTES):
            pass


def unpacked(content: bytes) -> bytes:
    """Return what a gzip file's content unpacks to.

    Raises:
        ValueError: it is larger than 1 GiB; of the published files the largest, of EMNIST, has half of that.
        OSError, EOFError, zlib.error: it is damaged.
    """
    with gzip.open(io.BytesIO(content)) as stream:
        found: bytes = stream.read(_MOST_BYTES + 1)
    if len(found) > _MOST_BYTES:
        raise ValueError(f"it unpacks to more than {_MOST_BYTES:,} bytes")
    return found


def members(path: Path, is_member: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the wanted files of a tar.gz, in the archive's order.

    The archive is read to its end, because gzip's checksum stands there.

    Raises:
        DataError: the archive is truncated or damaged, which may come after the last member; or it has a wanted file
            twice, as a link, or more than 1 GiB of them.
    """
    regular(path, DataError)
    seen, left = set[str](), _MOST_BYTES
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                if member.isdir() or not is_member(member.name):
                    continue
                content = archive.extractfile(member) if member.isfile() else None
                if content is None:
                    raise DataError(f"{path}: {member.name} must be a file, but is a link or a device")
                if member.name in seen:
                    raise DataError(f"{path}: {member.name} is in it twice")
                seen.add(member.name)
                left -= member.size
                if left < 0:
                    raise DataError(
                        f"{path}: expected at most {_MOST_BYTES:,} bytes of files, found more, up to {member.name}"
                    )
                yield member.name, content.read()
            # For tarfile a damaged header is the end of the archive, so it does not read on to the checksum.
            while stream.read(_PIECE_BYTES):
                pass
    except DataError:
        raise
    except (tarfile.TarError, EOFError, OSError, zlib.error, *_REFUSED) as error:
        raise DataError(f"{path}: expected a whole tar.gz archive: {error}") from error
