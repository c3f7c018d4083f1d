"""Reads EMNIST without writers: NIST's idx files of one of its splits."""

from __future__ import annotations

from typing import Literal

import numpy as np
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

ARCHIVE = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
_SIDE = 28
# The number of classes, and the first label: letters are counted from 1.
_SPLITS = {
    "balanced": (47, 0),
    "byclass": (62, 0),
    "bymerge": (47, 0),
    "digits": (10, 0),
    "letters": (26, 1),
    "mnist": (10, 0),
}


class EmnistIdx(Partitioned, Section):
    """Images in the format and orientation of MNIST; the files hold them transposed (Cohen et al. 2017)."""

    name: Literal["emnist_idx"] = "emnist_idx"
    root: FilePath | None = Key(
        None,
        description=(
            "Folder with emnist-<split>-train-images-idx3-ubyte and the three other files of the split, each with "
            ".gz as published or unpacked. Absent: $RAYSIM_DATA/emnist or data/emnist."
        ),
    )
    split: Literal["balanced", "byclass", "bymerge", "digits", "letters", "mnist"] = Key(
        "balanced", description="Which of EMNIST's six splits."
    )


def published(section: EmnistIdx) -> tuple[Published, ...]:
    """Return a split's images and labels for training, then for test."""
    stems = [
        f"emnist-{section.split}-{side}-{kind}-ubyte"
        for side in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    return tuple(Published(f"{stem}.gz", f"{ARCHIVE} (unpack it)", others=(stem,)) for stem in stems)


def open_source(section: EmnistIdx) -> Source:
    """Find the files; DataError naming the one that is missing."""
    idx_files = published(section)
    folder = locate(section.root, "emnist", idx_files)
    files = [IdxFile.find(folder, file) for file in idx_files]
    train_images, train_labels, test_images, test_labels = files

    def load() -> SourceExamples:
        train_x, train_y = _pair(train_images, train_labels, section.split)
        test_x, test_y = _pair(test_images, test_labels, section.split)
        return SourceExamples(
            x=Field((1, _SIDE, _SIDE), "uint8", scale=1 / 255),
            num_classes=_SPLITS[section.split][0],
            train_x=train_x,
            train_y=train_y,
            test_x=test_x,
            test_y=test_y,
        )

    address = {"name": "emnist_idx", "files": [file.digest for file in files]}
    return Source(address, load)


def _pair(
    images: IdxFile, labels: IdxFile, split: str
) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], Int64s]:
    num_classes, first = _SPLITS[split]
    x, y = images.array(num_dimensions=3), labels.array(num_dimensions=1).astype(np.int64) - first
    if x.shape[1:] != (_SIDE, _SIDE):
        raise DataError(f"{images.path}: expected images of {_SIDE} x {_SIDE}, found {x.shape[1]} x {x.shape[2]}")
    if len(x) != len(y):
        raise DataError(f"{labels.path}: expected {len(x)} labels, as many as images in {images.path}, found {len(y)}")
    if len(y) and not 0 <= y.min() <= y.max() < num_classes:
        raise DataError(
            f"{labels.path}: expected labels in {first}..{first + num_classes - 1}, "
            f"found {y.min() + first} to {y.max() + first}"
        )
    return np.ascontiguousarray(x.transpose(0, 2, 1))[:, None], y
