"""A machine's copy of a dataset: fetched once, checked, mapped; and the store that machines share."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim import DataError, FederatedDataset, RemoteError
from raysim.data import DatasetWriter, Field
from raysim.data.cache import open_or_build
from raysim.data.copies import fetch_copy
from raysim.data.prepare import prepare
from raysim.data.section import Digits, Mnist, Table
from raysim.errors import DiskError
from raysim.storage.cache import datasets
from raysim.storage.remote.remote import Remote

NAMES = ("dataset.json", "train.arrow", "train.index.arrow")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "machine"))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A prepared dataset on another machine's disk."""
    write(tmp_path / "there")
    return tmp_path / "there"


def write(path: Path) -> None:
    with DatasetWriter(path, Field((3,), "float32"), Field((), "int64"), 2) as writer:
        for client in "abc":
            writer.write("train", client, np.ones((5, 3), np.float32), np.arange(5) % 2)


def never(path: Path) -> None:
    raise AssertionError("built again")


def copies() -> list[Path]:
    return [entry for entry in datasets().iterdir() if not entry.name.startswith(".")]


def test_a_damaged_copy_that_cannot_be_deleted_is_named(
    machine: None, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = fetch_copy("key", None, Remote(there.as_uri()))
    (copy / "train.arrow").write_bytes(b"x")
    remove = shutil.rmtree

    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if path == copy and not ignore_errors:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        if path != copy:
            remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(DiskError, match=f"{copy} could not be deleted: Operation not permitted"):
        fetch_copy("key", None, Remote(there.as_uri()))


def test_a_copy_whose_lock_is_another_users_is_named(machine: None, there: Path) -> None:
    (datasets() / ".key.lock").mkdir(parents=True)
    with pytest.raises(DiskError, match=f"{datasets()}/.key.lock must be a file, but is a folder"):
        fetch_copy("key", None, Remote(there.as_uri()))


def test_a_dataset_at_a_uri_is_copied_once_and_equals_itself(machine: None, there: Path) -> None:
    original = FederatedDataset.open(there)
    for _ in range(2):
        opened = FederatedDataset.open(there.as_uri())
        assert opened.fingerprint == original.fingerprint
        assert opened.train.client(1)[0].tolist() == original.train.client(1)[0].tolist()
    (copy,) = copies()
    assert sorted(file.name for file in copy.iterdir()) == sorted(NAMES)


def test_a_truncated_copy_is_noticed_and_fetched_again(
    machine: None, there: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FederatedDataset.open(there.as_uri())
    (copy,) = copies()
    whole = (copy / "train.arrow").read_bytes()
    (copy / "train.arrow").write_bytes(whole[:-100])
    FederatedDataset.open(there.as_uri())
    assert re.search(r"is damaged and is fetched again: .*train\.arrow is damaged: expected", caplog.text)
    assert (copy / "train.arrow").read_bytes() == whole
    assert copies() == [copy]


def test_what_is_damaged_at_its_source_is_named_and_not_kept(machine: None, there: Path) -> None:
    content = bytearray((there / "train.arrow").read_bytes())
    content[len(content) // 2] ^= 1
    (there / "train.arrow").write_bytes(content)
    with pytest.raises(DataError, match=r"there/train\.arrow is damaged: expected \d+ bytes with blake2b \w+.*found"):
        FederatedDataset.open(there.as_uri())
    assert copies() == []


def test_another_dataset_than_the_one_asked_for_is_refused(machine: None, there: Path) -> None:
    with pytest.raises(DataError, match="must hold the dataset with fingerprint ffff, but holds"):
        fetch_copy("key", "ffff", Remote(there.as_uri()))


def test_what_one_machine_prepares_the_others_take_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSIM_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "one"))
    made = open_or_build({"source": "a"}, write)
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "other"))
    assert open_or_build({"source": "a"}, never).fingerprint == made.fingerprint
    assert len(copies()) == 1
    monkeypatch.delenv("RAYSIM_STORE")
    open_or_build({"source": "a"}, never)


@pytest.mark.parametrize("named", ["/mnt/store", "store", "file://host/store", "ftp://host/store"])
def test_a_store_that_is_no_uri_is_named_by_its_variable(
    machine: None, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("RAYSIM_STORE", named)
    with pytest.raises(RemoteError, match=rf"The environment variable RAYSIM_STORE cannot be used: '?{named}"):
        prepare(Digits(clients=7), 0)


def test_a_uri_without_a_dataset_is_named(machine: None, tmp_path: Path) -> None:
    uri = tmp_path.as_uri()
    with pytest.raises(DataError, match=rf"{uri}/dataset\.json is missing: there is no prepared dataset in {uri}"):
        FederatedDataset.open(uri)


def test_a_table_at_a_uri_is_read_and_read_again_once_it_has_changed(machine: None, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()

    def labels(*written: int) -> list[int]:
        pq.write_table(
            pa.table({"client": ["a"] * len(written), "x": [0.5] * len(written), "y": written}), there / "t.parquet"
        )
        section = Table(root=there.as_uri(), train="t.parquet")
        return list(prepare(section, 0).train.client(0)[1].tolist())

    assert labels(0, 1) == [0, 1]
    assert labels(1, 0, 1) == [1, 0, 1]
    with pytest.raises(DataError, match=r"there/u\.parquet is missing: data\.root"):
        prepare(Table(root=there.as_uri(), train="u.parquet"), 0)
    with pytest.raises(DataError, match=r"must be a folder of this machine for this source, but is file:///mnist"):
        prepare(Mnist(root="file:///mnist", clients=10), 0)


def test_a_store_that_does_not_take_what_was_prepared_costs_a_warning(
    machine: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAYSIM_STORE", (tmp_path / "store").as_uri())

    def full(self: Remote, file: Path, name: str) -> None:
        raise RemoteError("no room")

    monkeypatch.setattr(Remote, "put", full)
    assert len(open_or_build({"source": "a"}, write).train) == 3
    assert "could not be put into the store: no room" in caplog.text
