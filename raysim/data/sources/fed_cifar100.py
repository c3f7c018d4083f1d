"""Reads CIFAR-100 by client as TensorFlow Federated divides it: 500 clients for training, 100 others for test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.config.section import Section
from raysim.config.values import FilePath
from raysim.data.populated import Populated
from raysim.data.source import LABEL, ClientRows, Population
from raysim.data.sources import cifar, hdf5, tff_sqlite, whole_numbers
from raysim.data.sources.cifar_files import SIDE
from raysim.data.sources.published import Published, SourceFile
from raysim.data.sources.root import locate
from raysim.errors import DataError

_TFF = "https://storage.googleapis.com/tff-datasets-public"
ARCHIVE = f"{_TFF}/fed_cifar100.tar.bz2"
CHECKSUM = "sha256:e8575e22c038ecef1ce6c7d492d7abee7da13b1e1ba9b70a7fc18531ba7590de"
HDF5 = tuple(Published(f"fed_cifar100_{side}.h5", f"{ARCHIVE} (unpack it)") for side in ("train", "test"))
SQLITE = Published("cifar100.sqlite", f"{_TFF}/cifar100.sqlite.lzma (unpack it)")

_LABELS = {"fine": ("label", 100), "coarse": ("coarse_label", 20)}


class FedCifar100(Populated, Section):
    """The clients of Reddi et al. (2021), 100 images each, which Charles et al. (2021) have too.

    They were drawn by Pachinko allocation; `cifar100` draws others in the same way. Test clients do not train: their
    ids are "test-0", "test-1", ..., because the files number them as training clients.
    """

    name: Literal["fed_cifar100"] = "fed_cifar100"
    root: FilePath | None = Key(
        None,
        description=(
            "Folder with fed_cifar100_train.h5 and fed_cifar100_test.h5, or with cifar100.sqlite. Absent: "
            "$RAYSIM_DATA/fed_cifar100 or data/fed_cifar100."
        ),
    )
    labels: Literal["fine", "coarse"] = Key(
        "fine", description="Which labels images have: a hundred fine or twenty coarse ones."
    )
    crop: int | None = Key(None, ge=1, le=SIDE, description="Side of the central crop in pixels. Absent: none.")
    standardise: bool = Key(
        False, description="Scale each image to mean 0 and standard deviation 1, as float32; otherwise pixels to 0..1."
    )


def open_source(section: FedCifar100) -> Population:
    """Find the files; DataError naming what is missing."""
    folder = locate(section.root, "fed_cifar100", HDF5)
    if (file := SQLITE.here(folder)) is not None:
        return _population(section, [file], lambda: tff_sqlite.ids(file, "train"), lambda: _from_sqlite(section, file))
    train, test = (published.find(folder) for published in HDF5)
    return _population(section, [train, test], lambda: hdf5.ids(train), lambda: _from_hdf5(section, train, test))


def _population(
    section: FedCifar100,
    files: list[SourceFile],
    train_ids: Callable[[], list[str]],
    stream: Callable[[], Iterator[ClientRows]],
) -> Population:
    return Population(
        address={"name": "fed_cifar100", "files": [file.digest for file in files]},
        x=cifar.stored_field(section.crop, section.standardise),
        y=LABEL,
        num_classes=_LABELS[section.labels][1],
        train_ids=train_ids,
        stream=stream,
    )


def _from_hdf5(section: FedCifar100, train: SourceFile, test: SourceFile) -> Iterator[ClientRows]:
    label = _LABELS[section.labels][0]
    for split, file in (("train", train), ("test", test)):
        for client, columns in hdf5.clients(file, ["image", label]):
            with file.reading(f"images and labels of client {client!r}"):
                rows = _rows(section, split, client, columns["image"], columns[label], file)
            yield rows


def _from_sqlite(section: FedCifar100, file: SourceFile) -> Iterator[ClientRows]:
    label = _LABELS[section.labels][0]
    tff_sqlite.check_splits(file, ("train", "test"))
    for split in ("train", "test"):
        for client, examples in tff_sqlite.clients(file, split):
            with file.reading(f"image and {label} of client {client!r}"):
                images = np.array([example["image"] for example in examples])
                rows = _rows(section, split, client, images, np.array([example[label] for example in examples]), file)
            yield rows


def _rows(
    section: FedCifar100, split: str, client: str, images: npt.NDArray[Any], labels: npt.NDArray[Any], file: SourceFile
) -> ClientRows:
    """Return a client's rows, of images whose channels come last, as they are stored: channels first, cropped."""
    where, most = f"{file.path}, client {client!r}", _LABELS[section.labels][1]
    y = whole_numbers.whole(labels.reshape(-1), "labels", most - 1, where)
    if (images.size or len(y)) and images.shape not in ((len(y), SIDE, SIDE, 3), (len(y), SIDE * SIDE * 3)):
        found = " x ".join(map(str, images.shape[1:]))
        raise DataError(
            f"{where}: expected images of {SIDE} x {SIDE} x 3, found {len(images)} of {found} for {len(y)} labels"
        )
    pixels = whole_numbers.whole_bytes(images, "pixels", where)
    x = pixels.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2)
    named = client if split == "train" else f"test-{client}"
    return ClientRows(split, named, cifar.stored_images(x, section.crop, section.standardise), y)
