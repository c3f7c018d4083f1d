"""A split's files that differ from their description are refused, and not mapped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from raysim.data import DatasetWriter, FederatedDataset, Field, checksums
from raysim.data.columns import INDEX_SCHEMA
from raysim.errors import DataError
from tests.support import sealed_json

ONES, ZEROS = np.ones((5, 2), np.float32), np.zeros(5, np.int64)
"""A client's rows."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients with five rows each, in record batches of four rows."""
    with DatasetWriter(tmp_path / "set", Field((2,), "float32"), Field((), "int64"), 3, batch_bytes=64) as writer:
        for name in ("a", "b"):
            writer.write("train", name, ONES, ZEROS)
    return tmp_path / "set"


def described_anew(folder: Path, file: Path) -> None:
    """Make the description's size and checksum those of the file: what is tested is the content."""
    manifest = folder / "dataset.json"
    kind = "index" if "index" in file.name else "data"
    described = json.loads(manifest.read_text())
    described["splits"]["train"] |= {f"{kind}_bytes": file.stat().st_size, f"{kind}_crc32": checksums.of_file(file)}
    sealed_json.write(manifest, described)


def index(folder: Path, *columns: list[int | str | None], batches: int = 1) -> None:
    file = folder / "train.index.arrow"
    crcs = [[checksums.of_rows(rows)] * len(columns[0]) for rows in (ONES, ZEROS)]
    every = zip((*columns, *crcs), INDEX_SCHEMA, strict=True)
    batch = pa.record_batch([pa.array(c, f.type) for c, f in every], INDEX_SCHEMA)
    with pa.ipc.new_file(str(file), INDEX_SCHEMA) as sink:
        for _ in range(batches):
            sink.write_batch(batch)
    described_anew(folder, file)


def read(folder: Path) -> int:
    train = FederatedDataset.open(folder).train
    return sum(len(train.client(position)[1]) for position in range(len(train)))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ((["a", "b"], [0, 5], [5, 5]), None),
        ((["a", "b"], [0, 6], [5, 5]), "its clients do not follow each other"),
        ((["a", "b"], [0, 5], [5, 2**40]), "its clients do not follow each other"),
        ((["a", "b"], [0, 7], [7, -2]), "its clients do not follow each other"),
        ((["a", "b"], [0, 5], [5, 4]), "it has 9 rows, and 10 are described"),
        ((["a"], [0], [10]), "it has 1 clients or nulls, and 2 clients are described"),
        ((["a", None], [0, 5], [5, 5]), "it has 2 clients or nulls"),
    ],
)
def test_an_index_is_that_of_its_rows(
    folder: Path, columns: tuple[list[int | str | None], ...], said: str | None
) -> None:
    index(folder, *columns)
    if said is None:
        assert read(folder) == 10
        return
    with pytest.raises(DataError, match=rf"train\.index\.arrow is damaged: expected an index of clients: {said}"):
        read(folder)


def test_an_index_is_one_record_batch(folder: Path) -> None:
    index(folder, ["a", "b"], [0, 5], [5, 5], batches=2)
    with pytest.raises(DataError, match=r"train\.index\.arrow is damaged: .*it has 2 record batches"):
        read(folder)


def rows(folder: Path, sizes: list[int]) -> None:
    file = folder / "train.arrow"
    kind = pa.list_(pa.float32(), 2)
    schema = pa.schema([("x", kind), ("y", pa.int64())])
    with pa.ipc.new_file(str(file), schema) as sink:
        for size in sizes:
            sink.write_batch(pa.record_batch([pa.array([[1.0, 1.0]] * size, kind), pa.array([0] * size)], schema))
    described_anew(folder, file)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([4, 4, 2], None),
        ([4, 4], "expected 3 record batches, found 2"),
        ([4, 3, 3], "a whole record batch 1: it has 3 rows, not 4"),
        ([4, 4, 1], "a whole record batch 2: it has 1 rows, not 2"),
    ],
)
def test_record_batches_have_the_described_rows(folder: Path, sizes: list[int], said: str | None) -> None:
    rows(folder, sizes)
    if said is None:
        assert read(folder) == 10
        return
    with pytest.raises(DataError, match=rf"train\.arrow is damaged: .*{said}"):
        read(folder)


@pytest.mark.parametrize("name", ["train.arrow", "train.index.arrow", "dataset.json"])
@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_something_else_in_the_place_of_a_file_is_named(folder: Path, name: str, put: Callable[[Path], None]) -> None:
    (folder / name).unlink()
    put(folder / name)
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read(folder)
