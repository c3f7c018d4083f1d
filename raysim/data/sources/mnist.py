"""Reads MNIST and Fashion-MNIST: the same four files, from two publishers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import FilePath
from raysim.data.field import Field
from raysim.data.partitioned import Partitioned
from raysim.data.source import Source, SourceExamples
from raysim.data.sources.idx import IdxFile
from raysim.data.sources.published import Published
from raysim.data.sources.root import locate
from raysim.errors import DataError

_CLASSES = 10
_SIDE = 28


_STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_ADDRESSES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist",
    "fashion_mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
}
_MD5S = {
    "mnist": (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion_mnist": (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
}


def _published(name: str, stem: str, md5: str) -> Published:
    address = f"{_ADDRESSES[name]}/{stem}.gz"
    others = [(f"md5:{other}", f"data.name = {of!r}") for of, md5s in _MD5S.items() if of != name for other in md5s]
    return Published(f"{stem}.gz", address, f"md5:{md5}", (stem,), not_meant=tuple(others))


FILES = {
    name: tuple(_published(name, stem, md5) for stem, md5 in zip(_STEMS, md5s, strict=True))
    for name, md5s in _MD5S.items()
}
"""By source: images and labels for training, then for test."""


class Mnist(Partitioned, Section):
    """Handwritten digits, 28x28 grey, 60,000 for training and 10,000 for test (LeCun, Cortes and Burges)."""

    name: Literal["mnist"] = "mnist"
    root: FilePath | None = Key(
        None,
        description=(
            "Folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
            "t10k-labels-idx1-ubyte, each with .gz as published or unpacked. Absent: $RAYSIM_DATA/mnist or "
            "data/mnist."
        ),
    )


class FashionMnist(Partitioned, Section):
    """Zalando's article images, in the numbers, shapes and files of MNIST (Xiao, Rasul and Vollgraf 2017)."""

    name: Literal["fashion_mnist"] = "fashion_mnist"
    root: FilePath | None = Key(
        None, description="Folder with files as of `mnist`. Absent: $RAYSIM_DATA/fashion-mnist or data/fashion-mnist."
    )


def open_source(section: Mnist | FashionMnist) -> Source:
    """Find the four files; DataError naming the one that is missing."""
    files = MnistFiles.find(section)
    return Source(files.address(), files.load)


@dataclass(frozen=True)
class MnistFiles:
    """The four files, not yet decoded: enough to find the prepared dataset in the cache."""

    name: str
    train_images: IdxFile
    train_labels: IdxFile
    test_images: IdxFile
    test_labels: IdxFile

    @classmethod
    def find(cls, section: Mnist | FashionMnist) -> MnistFiles:
        """Read the files in the section's root; DataError if one is missing."""
        files = FILES[section.name]
        folder = locate(section.root, section.name.replace("_", "-"), files)
        return cls(section.name, *(IdxFile.find(folder, file) for file in files))

    def address(self) -> dict[str, Any]:
        """Return the facts that determine the source's content: the digests of the files."""
        files = (self.train_images, self.train_labels, self.test_images, self.test_labels)
        return {"name": self.name, "files": [file.digest for file in files]}

    def load(self) -> SourceExamples:
        """Decode and check the files.

        Returns:
            uint8 images of shape (1, 28, 28); their scale is 1/255.

        Raises:
            DataError: a file is damaged, or images and labels do not fit; names the file.
        """
        train_x, train_y = _pair(self.train_images, self.train_labels)
        test_x, test_y = _pair(self.test_images, self.test_labels)
        return SourceExamples(
            x=Field((1, _SIDE, _SIDE), "uint8", scale=1 / 255),
            num_classes=_CLASSES,
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
        )


def _pair(images: IdxFile, labels: IdxFile) -> tuple[npt.NDArray[np.uint8], Int64s]:
    x, y = images.array(num_dimensions=3), labels.array(num_dimensions=1)
    if x.shape[1:] != (_SIDE, _SIDE):
        raise DataError(f"{images.path}: expected images of {_SIDE} x {_SIDE}, found {x.shape[1]} x {x.shape[2]}")
    if len(x) != len(y):
        raise DataError(f"{labels.path}: expected {len(x)} labels, as many as images in {images.path}, found {len(y)}")
    if len(y) and y.max() >= _CLASSES:
        raise DataError(f"{labels.path}: expected labels in 0..{_CLASSES - 1}, found {y.max()}")
    return x[:, None], y.astype(np.int64)
