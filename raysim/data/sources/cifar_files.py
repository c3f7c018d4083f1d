"""Reads CIFAR's archives: the binary and the python version, packed or unpacked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data.sources import array_pickle, packed
from raysim.data.sources.editions import instead
from raysim.data.sources.published import Published, SourceFile
from raysim.errors import DataError, MissingFileError

SIDE = 32
_PIXELS = 3 * SIDE * SIDE
_FROM = "https://www.cs.toronto.edu/~kriz"


@dataclass(frozen=True)
class Distribution:
    """One dataset in its two versions.

    Attributes:
        binary, python: the archives.
        train, test: members of the binary archive; a record is `label_bytes` labels and 3,072 pixels.
        python_train, python_test: members of the python archive.
        label_bytes: 1, or 2 if a coarse label precedes the fine one.
        label_keys: of the python members, in the order of the labels of a binary record.
        num_images: of each member of the binary archive.
    """

    binary: Published
    python: Published
    train: tuple[str, ...]
    test: tuple[str, ...]
    python_train: tuple[str, ...]
    python_test: tuple[str, ...]
    label_bytes: int
    label_keys: tuple[bytes, ...]
    num_images: dict[str, int]

    def unpacked(self, name: str) -> Published:
        """Return a file of binary records: a member of the binary archive, or a user's file under another name."""
        num_images = self.num_images.get(name)
        size_bytes = None if num_images is None else num_images * (self.label_bytes + _PIXELS)
        return Published(name, f"{self.binary.address} (unpack it)", size_bytes=size_bytes)


CIFAR10 = Distribution(
    binary=Published(
        "cifar-10-binary.tar.gz", f"{_FROM}/cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"
    ),
    python=Published(
        "cifar-10-python.tar.gz", f"{_FROM}/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"
    ),
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test=("test_batch.bin",),
    python_train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    python_test=("test_batch",),
    label_bytes=1,
    label_keys=(b"labels",),
    num_images=dict.fromkeys((*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"), 10_000),
)
CIFAR100 = Distribution(
    binary=Published(
        "cifar-100-binary.tar.gz", f"{_FROM}/cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"
    ),
    python=Published(
        "cifar-100-python.tar.gz", f"{_FROM}/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"
    ),
    train=("train.bin",),
    test=("test.bin",),
    python_train=("train",),
    python_test=("test",),
    label_bytes=2,
    label_keys=(b"coarse_labels", b"fine_labels"),
    num_images={"train.bin": 50_000, "test.bin": 10_000},
)


@dataclass(frozen=True, eq=False)
class CifarImages:
    """x: uint8 (images, 3, 32, 32). labels: int64 (images, label_bytes)."""

    x: npt.NDArray[np.uint8]
    labels: Int64s


@dataclass(frozen=True, eq=False)
class CifarFiles:
    """The files of a distribution in a folder: an archive, or the unpacked files of the binary version."""

    distribution: Distribution
    files: tuple[SourceFile, ...]

    @classmethod
    def find(
        cls, folder: Path, distribution: Distribution, train: tuple[str, ...], test: tuple[str, ...]
    ) -> CifarFiles:
        """Find the binary archive, else its unpacked members `train` and `test`, else the python archive.

        If `train` and `test` are not the published members, no archive holds them: only unpacked files count.

        Raises:
            MissingFileError: none of them exists.
        """
        unpacked = tuple(map(distribution.unpacked, (*train, *test)))
        user_defined = (train, test) != (distribution.train, distribution.test)
        for version in (unpacked,) if user_defined else ((distribution.binary,), unpacked, (distribution.python,)):
            if all((folder / file.name).is_file() for file in version):
                return cls(distribution, tuple(file.find(folder) for file in version))
        if user_defined:
            raise MissingFileError(
                f"{folder} must hold {', '.join((*train, *test))}, which data.train_files and data.test_files name"
            )
        there = instead(folder, (distribution.binary.name,))
        raise MissingFileError(
            f"{there}{folder} must hold {distribution.binary.name}, {distribution.python.name} or "
            f"{', '.join((*train, *test))}; published at {distribution.binary.address}: put one of them there, or name "
            f"parts of it by data.train_files and data.test_files"
        )

    def load(self, train: tuple[str, ...], test: tuple[str, ...]) -> tuple[CifarImages, CifarImages]:
        """Return the training and the test images; DataError naming a damaged file and its defect."""
        if len(self.files) > 1 or self.files[0].path.suffix == ".bin":
            # By the names that were given: files of several folders may be called the same.
            names = (*train, *test)
            content = {name: file.path.read_bytes() for name, file in zip(names, self.files, strict=True)}
            where = str(self.files[0].path.parent)
            return self._binary(content, train, where), self._binary(content, test, where)
        path = self.files[0].path
        if path.name == self.distribution.binary.name:
            content = _members(path, {*self.distribution.train, *self.distribution.test})
            return (
                self._binary(content, self.distribution.train, str(path)),
                self._binary(content, self.distribution.test, str(path)),
            )
        content = _members(path, {*self.distribution.python_train, *self.distribution.python_test})
        return (
            self._python(content, self.distribution.python_train, str(path)),
            self._python(content, self.distribution.python_test, str(path)),
        )

    def _binary(self, content: dict[str, bytes], names: tuple[str, ...], where: str) -> CifarImages:
        num_labels = self.distribution.label_bytes
        parts = []
        for name in names:
            record_bytes = num_labels + _PIXELS
            if not content[name] or len(content[name]) % record_bytes:
                raise DataError(
                    f"{where}, {name}: expected records of {record_bytes} bytes, found {len(content[name])} bytes"
                )
            parts.append(np.frombuffer(content[name], np.uint8).reshape(-1, record_bytes))
        records = np.concatenate(parts)
        return CifarImages(records[:, num_labels:].reshape(-1, 3, SIDE, SIDE), records[:, :num_labels].astype(np.int64))

    def _python(self, content: dict[str, bytes], names: tuple[str, ...], where: str) -> CifarImages:
        xs, labels = [], []
        for name in names:
            batch = array_pickle.loads(content[name], f"{where}, {name}")
            keys = (b"data", *self.distribution.label_keys)
            if not isinstance(batch, dict) or not all(key in batch for key in keys):
                raise DataError(f"{where}, {name}: expected the keys {[key.decode() for key in keys]}")
            x, lists = batch[b"data"], [batch[key] for key in self.distribution.label_keys]
            if not all(isinstance(each, list) and _are_labels(each) for each in lists):
                raise DataError(f"{where}, {name}: expected lists of labels in 0..255")
            num_images = len(lists[0])
            if not isinstance(x, np.ndarray) or x.shape != (num_images, _PIXELS):
                found = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
                raise DataError(
                    f"{where}, {name}: expected uint8 data of shape ({num_images}, {_PIXELS}), found {found}"
                )
            if any(len(each) != num_images for each in lists):
                raise DataError(f"{where}, {name}: expected as many coarse as fine labels")
            batch_labels = np.array(lists, np.int64).T
            xs.append(x.reshape(-1, 3, SIDE, SIDE))
            labels.append(batch_labels)
        return CifarImages(np.concatenate(xs), np.concatenate(labels))


def _are_labels(values: list[object]) -> bool:
    return all(type(value) is int and 0 <= value <= 255 for value in values)


def _members(path: Path, names: set[str]) -> dict[str, bytes]:
    """Return the content of an archive's members by file name; DataError if one is missing, there twice, or damaged."""
    found: dict[str, bytes] = {}
    for name, content in packed.members(path, lambda name: Path(name).name in names):
        if (file := Path(name).name) in found:
            raise DataError(f"{path}: expected one {file}, found one in several folders")
        found[file] = content
    if missing := sorted(names - set(found)):
        raise DataError(
            f"{path}: expected the members {', '.join(missing)}, found {', '.join(sorted(found)) or 'none'}"
        )
    return found
