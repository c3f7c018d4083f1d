"""Reads EMNIST by writer: digits and letters, in the forms of TensorFlow Federated and LEAF."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.config.section import Section
from raysim.config.values import FilePath
from raysim.data.field import Field
from raysim.data.populated import Populated
from raysim.data.source import LABEL, ClientRows, Population
from raysim.data.sources import hdf5, leaf_json, tff_sqlite, whole_numbers
from raysim.data.sources.published import Digests, Published, SourceFile
from raysim.data.sources.root import locate
from raysim.errors import DataError

_TFF = "https://storage.googleapis.com/tff-datasets-public"
_LEAF = "https://github.com/TalwalkarLab/leaf, data/femnist"
_SIDE, _CLASSES = 28, 62

_ROUNDING = 0.13
"""Of a byte: files may round their numbers to three digits, but what is between two bytes is of another edition."""

SQLITE = Published("emnist_all.sqlite", f"{_TFF}/emnist_all.sqlite.lzma (unpack it)")
HDF5 = {
    False: tuple(
        Published(f"fed_emnist_{side}.h5", f"{_TFF}/fed_emnist.tar.bz2 (unpack it)") for side in ("train", "test")
    ),
    True: tuple(
        Published(f"fed_emnist_digitsonly_{side}.h5", f"{_TFF}/fed_emnist_digitsonly.tar.bz2 (unpack it)")
        for side in ("train", "test")
    ),
}


class Emnist(Populated, Section):
    """28 x 28 grey images in the form's orientation, dark on white; 62 classes: digits, capitals, small letters."""

    name: Literal["emnist"] = "emnist"
    root: FilePath | None = Key(
        None, description="Folder of the form's files. Absent: $RAYSIM_DATA/emnist or data/emnist."
    )
    form: Literal["tff", "leaf"] = Key(
        "tff",
        description=(
            '"tff": fed_emnist_train.h5 and fed_emnist_test.h5, or emnist_all.sqlite. "leaf": data/train/*.json and '
            "data/test/*.json, as LEAF's script writes them."
        ),
    )
    digits: bool = Key(
        False, description="Only the ten digits (tff: fed_emnist_digitsonly_*.h5; elsewhere other images are left out)."
    )


def open_source(section: Emnist) -> Population:
    """Find the form's files; DataError naming what is missing."""
    if section.form == "leaf":
        folder = locate(section.root, "emnist", leaf_json.published(_LEAF))
        sides = {side: leaf_json.find(folder, side, _LEAF) for side in ("train", "test")}
        digests, train_ids = leaf_json.digests(sides), lambda: leaf_json.names(sides["train"])
        return _population(section, digests, train_ids, lambda: _from_leaf(section, sides))
    folder = locate(section.root, "emnist", HDF5[section.digits])
    if (file := SQLITE.here(folder)) is not None:
        return _population(
            section, [file.digest], lambda: tff_sqlite.ids(file, "train"), lambda: _from_sqlite(section, file)
        )
    train, test = (published.find(folder) for published in HDF5[section.digits])
    tff = {"train": train, "test": test}
    return _population(section, [train.digest, test.digest], lambda: hdf5.ids(train), lambda: _from_hdf5(section, tff))


def _population(
    section: Emnist,
    digests: Digests,
    train_ids: Callable[[], list[str]],
    stream: Callable[[], Iterator[ClientRows]],
) -> Population:
    return Population(
        address={"name": "emnist", "files": digests},
        x=Field((1, _SIDE, _SIDE), "uint8", scale=1 / 255),
        y=LABEL,
        num_classes=10 if section.digits else _CLASSES,
        train_ids=train_ids,
        stream=stream,
    )


def _from_hdf5(section: Emnist, sides: dict[str, SourceFile]) -> Iterator[ClientRows]:
    for split, file in sides.items():
        for client, columns in hdf5.clients(file, ["pixels", "label"]):
            with file.reading(f"images and labels of client {client!r}"):
                rows = _rows(section, split, client, columns["pixels"], columns["label"], file.path)
            yield rows


def _from_sqlite(section: Emnist, file: SourceFile) -> Iterator[ClientRows]:
    tff_sqlite.check_splits(file, ("train", "test"))
    for split in ("train", "test"):
        for client, examples in tff_sqlite.clients(file, split):
            with file.reading(f"pixels and label of client {client!r}"):
                pixels = np.array([example["pixels"] for example in examples])
                labels = np.array([example["label"] for example in examples])
                rows = _rows(section, split, client, pixels, labels, file.path)
            yield rows


def _from_leaf(section: Emnist, sides: dict[str, list[SourceFile]]) -> Iterator[ClientRows]:
    for split, files in sides.items():
        for file, user in leaf_json.all_users(files):
            where = f"{file.path}, user {user.name!r}"
            pixels, labels = leaf_json.numbers(user.x, where), leaf_json.labels(user.y, _CLASSES, where)
            yield _rows(section, split, user.name, pixels, labels, file.path)


def _rows(
    section: Emnist, split: str, client: str, pixels: npt.NDArray[Any], labels: npt.NDArray[Any], path: Path
) -> ClientRows:
    """Convert images of 784 values in 0..1 to bytes. The values come from bytes, so this loses nothing."""
    where = f"{path}, client {client!r}"
    y = whole_numbers.whole(labels.reshape(-1), "labels", _CLASSES - 1, where)
    whole_numbers.real(pixels, "pixels", where)
    if (pixels.size or len(y)) and pixels.shape not in ((len(y), _SIDE, _SIDE), (len(y), _SIDE * _SIDE)):
        found = " x ".join(map(str, pixels.shape[1:]))
        raise DataError(
            f"{where}: expected images of {_SIDE} x {_SIDE}, found {len(pixels)} of {found} for {len(y)} labels"
        )
    if pixels.size and not 0 <= pixels.min() <= pixels.max() <= 1:
        raise DataError(f"{where}: expected values in 0..1, found {pixels.min()} to {pixels.max()}")
    grey = pixels.reshape(-1, 1, _SIDE, _SIDE) * np.float64(255)
    x = np.rint(grey).astype(np.uint8)
    if (between := np.abs(grey - x) > _ROUNDING).any():
        raise DataError(f"{where}: expected whole multiples of 1/255, found {grey[between][0] / 255:g}")
    if section.digits:
        x, y = x[y < 10], y[y < 10]
    return ClientRows(split, client, x, y)
