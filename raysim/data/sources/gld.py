"""Reads Google Landmarks by photographer: GLD-23k and GLD-160k (Hsu, Qi and Brown 2020)."""

from __future__ import annotations

import csv
import logging
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
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
from raysim.data.sources.published import Published, SourceFile
from raysim.data.sources.root import locate
from raysim.errors import DataError
from raysim.storage.cache import hasher
from raysim.storage.inside import inside
from raysim.storage.reading import parsing, regular

log = logging.getLogger("raysim")

_TFF = "https://storage.googleapis.com/tff-datasets-public"
_BUNDLE = "https://storage.googleapis.com/gresearch/federated-vision-datasets/landmarks-user-160k.zip (unpack it)"
_IMAGES = "https://github.com/cvdfoundation/google-landmark, train set"
_ROWS_TOGETHER = 64
_PNG, _DEPTH = b"\x89PNG\r\n\x1a\n", 24
"""How a PNG file begins, and the place of its bits a channel."""

_CLASS = re.compile(r"[0-9]{1,9}")

# Mapping files, and the number of classes.
SETS = {
    "gld23k": (
        Published("mini_gld_train_split.csv", f"{_TFF}/mini_gld_train_split.csv"),
        Published("mini_gld_test.csv", f"{_TFF}/mini_gld_test.csv"),
        203,
    ),
    "gld160k": (Published("federated_train.csv", _BUNDLE), Published("test.csv", _BUNDLE), 2028),
}


class Gld(Populated, Section):
    """Photographs of landmarks, a client for every photographer, resized to size x size; three channels.

    The shorter side is scaled to `size` and the middle kept. The test images have no photographer: one client "test".
    The mapping files and the sizes of the images determine the cache's address: reading all images would take minutes
    before every run.
    """

    name: Literal["gld"] = "gld"
    root: FilePath | None = Key(
        None,
        description=(
            "Folder with the mapping files, and the images as images/<id>.jpg or images/<a>/<b>/<c>/<id>.jpg, a, b "
            "and c being the id's first characters. Absent: $RAYSIM_DATA/gld or data/gld."
        ),
    )
    set: Literal["gld23k", "gld160k"] = Key(
        "gld23k", description='"gld23k": 233 clients, 203 classes. "gld160k": 1,262 clients, 2,028 classes.'
    )
    size: int = Key(128, ge=1, le=4_096, description="Side of the stored images, in pixels.")


def open_source(section: Gld) -> Population:
    """Find the mapping files; DataError naming what is missing."""
    train_file, test_file, num_classes = SETS[section.set]
    folder = locate(section.root, "gld", (train_file, test_file))
    train, test = train_file.find(folder), test_file.find(folder)

    @cache
    def by_client() -> dict[str, list[tuple[str, int]]]:
        found: dict[str, list[tuple[str, int]]] = {}
        for user, image, label in mapping(train, ("user_id", "image_id", "class"), num_classes):
            found.setdefault(user, []).append((image, label))
        return dict(sorted(found.items()))

    def stream() -> Iterator[ClientRows]:
        for client, images in by_client().items():
            yield from _pieces("train", client, images)
        tested = [(image, label) for _, image, label in mapping(test, (None, "image_id", "class"), num_classes)]
        yield from _pieces("test", "test", tested)

    def _pieces(split: str, client: str, images: list[tuple[str, int]]) -> Iterator[ClientRows]:
        for start in range(0, len(images), _ROWS_TOGETHER):
            piece = images[start : start + _ROWS_TOGETHER]
            x = np.stack([image(_image_path(folder / "images", name), section.size) for name, _ in piece])
            yield ClientRows(split, client, x, np.array([label for _, label in piece], np.int64))

    names = [name for images in by_client().values() for name, _ in images]
    names += [name for _, name, _ in mapping(test, (None, "image_id", "class"), num_classes)]
    _warn_of_copies(names, folder)
    address: dict[str, Any] = {
        "name": "gld",
        "files": [train.digest, test.digest],
        "images": _digest_of_sizes(folder / "images", names),
    }
    x = Field((3, section.size, section.size), "uint8", scale=1 / 255)
    return Population(address, x, LABEL, num_classes, lambda: list(by_client()), stream)


def mapping(file: SourceFile, columns: tuple[str | None, str, str], num_classes: int) -> Iterator[tuple[str, str, int]]:
    """Yield (user, image, class) of every row; the user is "" if there is no such column.

    Raises:
        DataError: a column is missing or there twice, a quote is open at the end, there is no row, or one has no
            user, no valid class, or more fields than there are columns; names the row.
    """
    user, image_id, label = columns
    with file.reading("a table in csv and UTF-8"), file.path.open(encoding="utf-8-sig", newline="") as stream:
        # Otherwise a quote that is not closed would take all later rows into its own.
        reader = csv.DictReader(stream, strict=True)
        if twice := [name for name, times in Counter(reader.fieldnames or ()).items() if times > 1]:
            raise DataError(f"{file.path}: expected columns that differ, found {twice[0]!r:.40} twice")
        missing = [name for name in columns if name is not None and name not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{file.path}: expected the columns {', '.join(missing)}, found {reader.fieldnames!r:.200}")
        number = 1
        for number, row in enumerate(reader, start=2):
            number_text = row[label]
            if not (row[image_id] and number_text and _CLASS.fullmatch(number_text) and int(number_text) < num_classes):
                raise DataError(
                    f"{file.path}, row {number}: expected an image and a class in 0..{num_classes - 1}, "
                    f"found {row[image_id]!r:.40} and {number_text!r:.40}"
                )
            if None in row:
                raise DataError(f"{file.path}, row {number}: expected {len(row) - 1} fields, found more")
            if user and not row[user]:
                raise DataError(f"{file.path}, row {number}: expected whose the image is in {user!r}, found nothing")
            yield (row[user] if user else ""), row[image_id], int(number_text)
        if number == 1:
            raise DataError(f"{file.path}: expected rows below the columns, found none")


def _warn_of_copies(names: list[str], folder: Path) -> None:
    if again := [name for name, times in Counter(names).items() if times > 1]:
        log.warning(
            "%s: the tables have %d images more than once, the first is %.40r: each row is an example",
            folder,
            len(again),
            again[0],
        )


def image(path: Path, size: int) -> npt.NDArray[np.uint8]:
    """Return the middle square of an image, (3, size, size).

    Raises:
        DataError: the file is not an image, or Pillow is not installed.
    """
    try:
        from PIL import Image, ImageOps  # optional
    except ImportError:
        raise DataError(f"{path} needs the package pillow: pip install 'raysim[images]'") from None
    with parsing(path, "a whole image in JPEG or PNG", DataError, verdict=""), warnings.catch_warnings():
        # Of an image that would take gigabytes, Pillow warns.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with path.open("rb") as file:
            head = file.read(_DEPTH + 1)
        if head.startswith(_PNG) and head[_DEPTH:] == b"\x10":
            raise ValueError("it has 16 bits a channel, of which Pillow would cut some off: convert it to 8 bits")
        # By name: Pillow goes by the content, and hands PostScript to another program, which runs it.
        with Image.open(path, formats=("JPEG", "PNG")) as opened:
            square = ImageOps.fit(opened.convert("RGB"), (size, size), Image.Resampling.BILINEAR)
    return np.asarray(square, np.uint8).transpose(2, 0, 1)


def _digest_of_sizes(folder: Path, names: Iterable[str]) -> str:
    """Return a digest of the sizes of the images, in order."""
    digest = hasher()
    for name in names:
        digest.update(_image_path(folder, name).stat().st_size.to_bytes(8, "little"))
    return digest.hexdigest()


def _image_path(folder: Path, name: str) -> Path:
    for place in (f"{name}.jpg", f"{'/'.join(name[:3])}/{name}.jpg"):
        path = inside(folder, place, "the table of images", DataError)
        if os.path.lexists(path):
            return regular(path, DataError)
    raise DataError(f"{folder / name}.jpg is missing; the images are published at {_IMAGES}")
