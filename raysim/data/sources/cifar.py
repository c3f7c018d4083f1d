"""Reads CIFAR-10 and CIFAR-100: 50,000 small colour images for training and 10,000 for test (Krizhevsky 2009)."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key
from pydantic import field_validator

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import FilePath
from raysim.data.field import Field
from raysim.data.partitioned import Partitioned
from raysim.data.source import Source, SourceExamples
from raysim.data.sources.cifar_files import CIFAR10, CIFAR100, SIDE, CifarFiles, CifarImages
from raysim.data.sources.root import locate
from raysim.errors import DataError


class Cifar10(Partitioned, Section):
    """Ten classes, 32 x 32, three channels."""

    name: Literal["cifar10"] = "cifar10"
    root: FilePath | None = Key(
        None,
        description=(
            "Folder with cifar-10-binary.tar.gz or cifar-10-python.tar.gz, or with unpacked binary files. Absent: "
            "$RAYSIM_DATA/cifar10 or data/cifar10."
        ),
    )
    crop: int | None = Key(
        None,
        ge=1,
        le=SIDE,
        description="Side of the central crop in pixels; Charles et al. and Reddi et al. (2021): 24. Absent: none.",
    )
    standardise: bool = Key(
        False, description="Scale each image to mean 0 and standard deviation 1, as float32; otherwise pixels to 0..1."
    )
    train_files: tuple[FilePath, ...] = Key(
        CIFAR10.train,
        min_length=1,
        max_length=100,
        description=(
            "Names of unpacked binary files, if they are not the published ones. A departure: results with a "
            "part of the files are not results on CIFAR-10."
        ),
    )
    test_files: tuple[FilePath, ...] = Key(
        CIFAR10.test, min_length=1, max_length=100, description="As `train_files`, for the test examples."
    )

    @field_validator("train_files", "test_files")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError(f"must name each file once, but is {', '.join(names)}")
        return names


class Cifar100(Partitioned, Section):
    """A hundred classes in twenty coarse classes, which partition "pachinko" needs."""

    name: Literal["cifar100"] = "cifar100"
    root: FilePath | None = Key(
        None,
        description=(
            "Folder with cifar-100-binary.tar.gz or cifar-100-python.tar.gz, or with train.bin and test.bin. "
            "Absent: $RAYSIM_DATA/cifar100 or data/cifar100."
        ),
    )
    labels: Literal["fine", "coarse"] = Key(
        "fine", description="Which labels images have: a hundred fine or twenty coarse ones."
    )
    crop: int | None = Key(None, ge=1, le=SIDE, description="Side of the central crop in pixels. Absent: none.")
    standardise: bool = Key(
        False, description="Scale each image to mean 0 and standard deviation 1, as float32; otherwise pixels to 0..1."
    )


def is_whole(section: Cifar10) -> bool:
    """Return whether the section names the published files, not user-defined ones."""
    return (section.train_files, section.test_files) == (CIFAR10.train, CIFAR10.test)


def open_cifar10(section: Cifar10) -> Source:
    """Find the files; DataError if they are missing."""
    unpacked = tuple(map(CIFAR10.unpacked, (*section.train_files, *section.test_files)))
    folder = locate(section.root, "cifar10", (CIFAR10.binary,) if is_whole(section) else unpacked)
    files = CifarFiles.find(folder, CIFAR10, section.train_files, section.test_files)

    def load() -> SourceExamples:
        train, test = files.load(section.train_files, section.test_files)
        for images in (train, test):
            _check(images.labels[:, 0], 10, str(folder))
        return _examples(section, train, test, 10, 0, None)

    return Source({"name": "cifar10", "files": [file.digest for file in files.files]}, load)


def open_cifar100(section: Cifar100) -> Source:
    """Find the files; DataError if they are missing."""
    folder = locate(section.root, "cifar100", (CIFAR100.binary,))
    files = CifarFiles.find(folder, CIFAR100, CIFAR100.train, CIFAR100.test)

    def load() -> SourceExamples:
        train, test = files.load(CIFAR100.train, CIFAR100.test)
        for images in (train, test):
            _check(images.labels[:, 0], 20, str(folder))
            _check(images.labels[:, 1], 100, str(folder))
        if section.labels == "coarse":
            return _examples(section, train, test, 20, 0, None)
        return _examples(section, train, test, 100, 1, hierarchy(train.labels, str(folder)))

    return Source({"name": "cifar100", "files": [file.digest for file in files.files]}, load)


def hierarchy(labels: Int64s, where: str) -> Int64s:
    """Return the coarse label of each of the 100 fine ones, from pairs (coarse, fine); -1 for those without an image.

    Raises:
        DataError: a fine label belongs to two coarse ones.
    """
    coarse_of = np.full(100, -1, np.int64)
    coarse_of[labels[:, 1]] = labels[:, 0]
    wrong = np.flatnonzero(coarse_of[labels[:, 1]] != labels[:, 0])
    if len(wrong):
        fine = int(labels[wrong[0], 1])
        raise DataError(
            f"{where}: a fine label must have one coarse label, "
            f"but {fine} has {labels[wrong[0], 0]} and {coarse_of[fine]}"
        )
    return coarse_of


def _check(labels: Int64s, num_classes: int, where: str) -> None:
    if labels.max() >= num_classes:
        raise DataError(f"{where}: expected labels in 0..{num_classes - 1}, found {labels.max()}")


def _examples(
    section: Cifar10 | Cifar100,
    train: CifarImages,
    test: CifarImages,
    num_classes: int,
    column: int,
    coarse_of: Int64s | None,
) -> SourceExamples:
    return SourceExamples(
        x=stored_field(section.crop, section.standardise),
        num_classes=num_classes,
        train_x=stored_images(train.x, section.crop, section.standardise),
        train_y=train.labels[:, column],
        test_x=stored_images(test.x, section.crop, section.standardise),
        test_y=test.labels[:, column],
        coarse_of=coarse_of,
    )


def stored_field(crop: int | None, standardise: bool) -> Field:
    """Return the field of images as `stored_images` returns them."""
    shape = (3, crop or SIDE, crop or SIDE)
    return Field(shape, "float32") if standardise else Field(shape, "uint8", scale=1 / 255)


def stored_images(x: npt.NDArray[np.uint8], crop: int | None, standardise: bool) -> npt.NDArray[np.uint8 | np.float32]:
    """Return images (n, 3, 32, 32) as they are stored: the middle of `crop` pixels, scaled if they are standardised."""
    cropped = central_crop(x, crop or SIDE)
    return standardised(cropped) if standardise else cropped


def central_crop(x: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """Return the middle `side` rows and columns of images (n, channels, height, width).

    An odd margin is smaller above and left, as in TensorFlow's resize_with_crop_or_pad.
    """
    top, left = (x.shape[2] - side) // 2, (x.shape[3] - side) // 2
    return np.ascontiguousarray(x[:, :, top : top + side, left : left + side])


def standardised(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return (x - mean) / max(std, 1 / sqrt(n)) of each image: tf.image.per_image_standardization.

    Mean and standard deviation are over all n numbers of an image; the bound keeps a constant image finite.
    """
    pixels = x.astype(np.float32)
    axes = (1, 2, 3)
    mean, std = pixels.mean(axes, keepdims=True), pixels.std(axes, keepdims=True)
    lowest = np.float32(1 / np.sqrt(np.prod(x.shape[1:])))
    scaled: npt.NDArray[np.float32] = (pixels - mean) / np.maximum(std, lowest)
    return scaled
