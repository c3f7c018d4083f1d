"""Flipped bits in a dataset's files: refused, or of no effect; in the cache made again where nothing was read yet."""

from __future__ import annotations

import itertools
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from raysim.data import DatasetWriter, Field, checksums
from raysim.data.cache import open_or_build
from raysim.data.copies import fetch_copy
from raysim.data.on_device import Examples
from raysim.data.prepare import prepare
from raysim.data.section import Table
from raysim.errors import DataError
from raysim.storage.remote.remote import Remote

Make = Callable[..., raysim.Experiment]
IN_ONE_BATCH, IN_MANY = 1 << 20, 200
STEP = 7


def write(path: Path, batch_bytes: int = IN_MANY) -> None:
    draws = np.random.default_rng(0)
    with DatasetWriter(path, Field((3,), "float32"), Field((), "int64"), 2, batch_bytes=batch_bytes) as writer:
        for split, client in itertools.product(("train", "test"), "abcd"):
            for _ in range(2):
                writer.write(split, client, draws.normal(size=(7, 3)).astype(np.float32), draws.integers(0, 2, 7))


def flip(file: Path, at: int, bit: int = 0) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


def content(dataset: raysim.FederatedDataset) -> list[Any]:
    """All that the splits say, as bytes and numbers."""
    return [
        (split.id_of(k), *(rows.tobytes() for rows in split.client(k)), split.sizes().tolist())
        for split in dataset.splits.values()
        for k in range(len(split))
    ]


@pytest.mark.parametrize("batch_bytes", [IN_ONE_BATCH, IN_MANY])
@pytest.mark.parametrize("name", ["dataset.json", "train.arrow", "train.index.arrow"])
def test_no_flipped_bit_changes_what_is_read(tmp_path: Path, name: str, batch_bytes: int) -> None:
    folder = tmp_path / "data"
    write(folder, batch_bytes)
    whole, file = content(raysim.FederatedDataset.open(folder)), folder / name
    size, refused = file.stat().st_size, 0
    for at in range(0, size, STEP):
        flip(file, at, at % 8)
        try:
            assert content(raysim.FederatedDataset.open(folder)) == whole, at
        except raysim.DataError:
            refused += 1
        flip(file, at, at % 8)
    if name != "train.arrow" or batch_bytes == IN_ONE_BATCH:
        assert refused == len(range(0, size, STEP))
    else:
        # The rest is padding, and what Arrow writes besides.
        assert refused > 8 * 7 * (12 + 8) / STEP


def test_only_the_damaged_client_is_refused_and_names_the_way_out(tmp_path: Path) -> None:
    write(tmp_path / "data")
    opened = raysim.FederatedDataset.open(tmp_path / "data")
    second = opened.train.client(1)[0]
    at = (tmp_path / "data" / "train.arrow").read_bytes().index(second[:1].tobytes())
    flip(tmp_path / "data" / "train.arrow", at)
    for damaged in (raysim.FederatedDataset.open(tmp_path / "data"), pickle.loads(pickle.dumps(opened))):
        damaged.train.client(0)
        for _ in range(2):
            with pytest.raises(raysim.DataError, match=r"train\.arrow is damaged: .* client 'b' .*write the dataset"):
                damaged.train.client(1)


def test_a_run_on_damaged_examples_ends_with_that_error(tmp_path: Path, experiment: Make) -> None:
    write(tmp_path / "data")
    for split in ("train", "test"):
        opened = raysim.FederatedDataset.open(tmp_path / "data")
        file = tmp_path / "data" / f"{split}.arrow"
        at = file.read_bytes().index(opened.split(split).client(2)[0][:1].tobytes())
        flip(file, at)
        exp = experiment(rounds=1, cohort={"size": 4}, evaluation={"every": 1, "split": "test"})
        with pytest.raises(raysim.DataError, match=rf"{split}\.arrow is damaged: the rows of client 'c'"):
            raysim.run(exp, dataset=raysim.FederatedDataset.open(tmp_path / "data"), path=tmp_path / split)
        flip(file, at)


@pytest.mark.parametrize("name", ["dataset.json", "test.arrow", "train.arrow", "train.index.arrow"])
def test_a_small_set_in_the_cache_is_made_again(cache: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    whole = content(open_or_build({"source": "a"}, lambda path: write(path, IN_ONE_BATCH)))
    (entry,) = (cache / "datasets").iterdir()
    flip(entry / name, (entry / name).stat().st_size // 2)
    assert content(open_or_build({"source": "a"}, lambda path: write(path, IN_ONE_BATCH))) == whole
    assert re.search(f"cannot be used and is prepared again: .*{re.escape(name)}", caplog.text)


def test_of_a_large_set_in_the_cache_the_folder_to_delete_is_named(cache: Path) -> None:
    open_or_build({"source": "a"}, write)
    (entry,) = (cache / "datasets").iterdir()
    assert checksums.advice(entry) == f"Delete the folder {entry}: raysim prepares or fetches it again."
    assert "Delete" not in checksums.advice(cache)


def test_a_damaged_copy_on_a_node_is_fetched_again(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "there", IN_ONE_BATCH)
    there = Remote((tmp_path / "there").as_uri())
    copy = fetch_copy("key", None, there)
    whole = (copy / "train.arrow").read_bytes()
    flip(copy / "train.arrow", len(whole) // 2)
    assert fetch_copy("key", None, there) == copy
    assert (copy / "train.arrow").read_bytes() == whole


def test_a_damaged_copy_of_a_table_is_fetched_again(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "there").mkdir()
    rows = {"client": ["a"] * 4, "x": [0.5, 1.0, 2.0, 3.0], "y": [0, 1, 0, 1]}
    pq.write_table(pa.table(rows), tmp_path / "there" / "t.parquet", compression="none")
    section = Table(root=(tmp_path / "there").as_uri(), train="t.parquet")
    whole = prepare(section, 0)
    (copy,) = (cache / "files").rglob("t.parquet")
    flip(copy, copy.read_bytes().index(np.array([0.5]).tobytes()) + 7)
    again = prepare(section, 0)
    assert again.fingerprint == whole.fingerprint
    assert again.train.client(0)[0].tolist() == rows["x"]


def overwritten(file: Path) -> None:
    content = bytearray(file.read_bytes())
    inner = slice(len(content) // 4, len(content) * 3 // 4)
    content[inner] = bytes(byte ^ 0xFF for byte in content[inner])
    with file.open("r+b") as same:
        same.write(content)


def cut_off(file: Path) -> None:
    os.truncate(file, 100)


def replaced(file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(bytes(file.stat().st_size))
    other.replace(file)


def removed(file: Path) -> None:
    file.unlink()


def touched(file: Path) -> None:
    pass


def rows_in_use(data: raysim.FederatedDataset) -> Callable[[], bytes]:
    """What reads all rows again, as a worker does."""
    examples, sizes = Examples(data), data.train.sizes()
    segments = [(k, 0, int(size)) for k, size in enumerate(sizes)]
    return lambda: b"".join(one.numpy().tobytes() for one in examples.load("train", segments, torch.empty(0)))


@pytest.mark.parametrize("batch_bytes", [IN_ONE_BATCH, IN_MANY])
@pytest.mark.parametrize("how", [overwritten, cut_off, replaced, removed, touched])
def test_a_file_that_changes_while_it_is_in_use(tmp_path: Path, how: Callable[[Path], None], batch_bytes: int) -> None:
    folder = tmp_path / "data"
    write(folder, batch_bytes)
    rows = rows_in_use(raysim.FederatedDataset.open(folder))
    before, file = rows(), folder / "train.arrow"
    how(file)
    if file.exists():
        # However fast this was.
        os.utime(file, (0, 0))
    if how in (overwritten, cut_off):
        # Each time, not the first alone.
        for _ in range(2):
            with pytest.raises(DataError, match=r"train\.arrow (is damaged|was cut off while it was in use)"):
                rows()
    else:
        assert rows() == rows() == before


@pytest.mark.parametrize("batch_bytes", [IN_ONE_BATCH, IN_MANY])
def test_a_file_that_keeps_its_time_is_checked_again(tmp_path: Path, batch_bytes: int) -> None:
    """As `cp -p` and `rsync --inplace --times` leave it; the time of the last change cannot be set."""
    folder = tmp_path / "data"
    write(folder, batch_bytes)
    rows, file = rows_in_use(raysim.FederatedDataset.open(folder)), folder / "train.arrow"
    rows()
    before = file.stat()
    overwritten(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    while file.stat().st_ctime_ns == before.st_ctime_ns:
        # However coarse the clock of the disk is.
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match=r"train\.arrow is damaged"):
        rows()
