"""What is prepared lies under the address of the files it was read from: files that change meanwhile are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysim.data import prepare as preparing
from raysim.data.prepare import prepare
from raysim.data.sources.ag_news import AgNews
from raysim.data.sources.emnist import Emnist
from raysim.data.sources.leaf import Leaf
from raysim.data.sources.shakespeare import Shakespeare
from raysim.data.sources.table import Table
from raysim.errors import DataError, DiskError, RaysimError
from raysim.storage import parquet
from raysim.storage.remote.remote import Remote


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "machine"))


def write(path: Path, *labels: int) -> None:
    pq.write_table(pa.table({"client": ["a", "a"], "x": [0.5, 0.5], "y": labels}), path)


def labels_of(section: Table) -> list[int]:
    return list(prepare(section, 0).train.client(0)[1].tolist())


@pytest.mark.parametrize("behind", [True, False])
def test_a_table_that_changes_while_it_is_prepared_is_refused(
    behind: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the reading, and before it but behind the digest."""
    path = tmp_path / "t.parquet"

    def with_a_change(path: Path, error: type[RaysimError]) -> pa.Table:
        if not behind:
            write(path, 1, 0)
        found = read(path, error)
        write(path, 1, 0)
        return found

    section, read = Table(root=str(tmp_path), train=path.name), parquet.read
    write(path, 0, 1)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(parquet, "read", with_a_change)
        with pytest.raises(DataError, match=r"t\.parquet changed while it was read: try again"):
            prepare(section, 0)
    assert labels_of(section) == [1, 0]
    write(path, 0, 1)
    assert labels_of(section) == [0, 1]


def test_a_published_file_that_changes_while_it_is_prepared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, write_all = AgNews(clients=1, root=str(tmp_path)), preparing._write
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text('"3","Oil","costs more"\n"1","Talks","go on"\n', encoding="utf-8")

    def with_a_change(*arguments: Any) -> None:
        (tmp_path / "train.csv").write_text('"4","Oil","costs more"\n"1","Talks","go on"\n', encoding="utf-8")
        write_all(*arguments)

    monkeypatch.setattr(preparing, "_write", with_a_change)
    with pytest.raises(DataError, match=r"train\.csv changed while it was read"):
        prepare(section, 0)
    monkeypatch.setattr(preparing, "_write", write_all)
    assert sorted(prepare(section, 0).train.client(0)[1].tolist()) == [0, 3]


def test_a_table_at_a_uri_that_changes_while_it_is_fetched_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces could be those of two contents."""
    there = tmp_path / "there"
    there.mkdir()
    section, read = Table(root=there.as_uri(), train="t.parquet"), Remote.read

    def with_a_change(self: Remote, name: str) -> Iterator[bytes]:
        yield from read(self, name)
        # Another file under the name, so that the stamp differs within one tick of the clock too.
        write(tmp_path / "new", 1, 0)
        (tmp_path / "new").replace(there / name)

    write(there / "t.parquet", 0, 1)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Remote, "read", with_a_change)
        with pytest.raises(DataError, match=r"there/t\.parquet changed while it was read: try again"):
            prepare(section, 0)
    assert labels_of(section) == [1, 0]


def test_a_cache_that_takes_no_table_from_a_uri_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, cache = tmp_path / "there", tmp_path / "cache"
    there.mkdir()
    write(there / "t.parquet", 0, 1)
    monkeypatch.setenv("RAYSIM_CACHE", str(cache))
    cache.mkdir()
    (cache / "files").touch()
    with pytest.raises(DiskError, match=r"cache/files/\w+ could not be written: Not a directory"):
        prepare(Table(root=there.as_uri(), train="t.parquet"), 0)


LEAF_FORMS: Mapping[str, tuple[type[Emnist | Leaf | Shakespeare], dict[str, str], list[Any], list[Any]]] = {
    "emnist": (Emnist, {"form": "leaf"}, [[0.0] * 784], [3]),
    "leaf": (Leaf, {}, [[0.5, 1.0]], [3]),
    "shakespeare": (Shakespeare, {"form": "leaf"}, ["abc"], ["d"]),
}


@pytest.mark.parametrize("source", LEAF_FORMS)
def test_a_file_that_is_moved_to_the_test_split_makes_another_dataset(source: str, tmp_path: Path) -> None:
    kind, keys, x, y = LEAF_FORMS[source]
    for side in ("train", "test"):
        (tmp_path / "data" / side).mkdir(parents=True)
    for side, user in (("train", "a"), ("train", "b"), ("test", "c")):
        content = {"users": [user], "num_samples": [1], "user_data": {user: {"x": x, "y": y}}}
        (tmp_path / "data" / side / f"{user}.json").write_text(json.dumps(content))
    section = kind.model_validate({"root": str(tmp_path), **keys})
    assert [len(split) for split in prepare(section, 0).splits.values()] == [2, 1]
    (tmp_path / "data" / "train" / "b.json").rename(tmp_path / "data" / "test" / "b.json")
    assert [len(split) for split in prepare(section, 0).splits.values()] == [1, 2]
