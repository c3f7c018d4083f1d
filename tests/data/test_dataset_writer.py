"""DatasetWriter and FederatedDataset.open: what is written is what is opened, or nothing is there."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.data import DatasetWriter, FederatedDataset, Field
from raysim.errors import DataError

X, Y = Field((2,), "float32"), Field((), "int64")
ROW_BYTES = 2 * 4 + 8


def rows(count: int, start: int = 0) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    numbers = np.arange(start, start + count)
    return np.stack([numbers, -numbers], axis=1).astype(np.float32), numbers % 3


def write(path: Path, batch_bytes: int = 4 * ROW_BYTES) -> FederatedDataset:
    with DatasetWriter(path, X, Y, 3, batch_bytes=batch_bytes) as writer:
        writer.write("train", "a", *rows(3))
        writer.write("test", "a", *rows(0))
        writer.write("train", "b", *rows(6, 3))
        writer.write("test", "c", *rows(2))
    return FederatedDataset.open(path)


def test_written_and_in_memory_are_the_same_dataset(tmp_path: Path) -> None:
    opened = write(tmp_path / "data")
    in_memory = FederatedDataset.from_clients({"a": rows(3), "b": rows(6, 3)}, test={"a": rows(0), "c": rows(2)})
    assert opened.fingerprint == in_memory.fingerprint
    assert (opened.x, opened.y, opened.num_classes) == (in_memory.x, in_memory.y, in_memory.num_classes)
    for name, split in in_memory.splits.items():
        for position in range(len(split)):
            assert opened.split(name).id_of(position) == split.id_of(position)
            for mine, theirs in zip(opened.split(name).client(position), split.client(position), strict=True):
                np.testing.assert_array_equal(mine, theirs)


@settings(deadline=None, max_examples=40)  # each example waits for the disk
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    batch_rows=st.integers(1, 12),
    piece=st.integers(1, 9),
)
def test_cutting_rows_into_batches_and_calls_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], batch_rows: int, piece: int
) -> None:
    path = tmp_path_factory.mktemp("written") / "data"
    clients = {f"client {k}": rows(size, 10 * k) for k, size in enumerate(sizes)}
    with DatasetWriter(path, X, Y, 3, batch_bytes=batch_rows * ROW_BYTES) as writer:
        for client_id, (x, y) in clients.items():
            for start in range(0, len(x), piece):
                writer.write("train", client_id, x[start : start + piece], y[start : start + piece])
                assert writer.buffered_rows < batch_rows
    opened = FederatedDataset.open(path)
    for position, (x, y) in enumerate(clients.values()):
        np.testing.assert_array_equal(opened.train.client(position)[0], x)
        np.testing.assert_array_equal(opened.train.client(position)[1], y)
    largest = max(int(y.max()) for _, y in clients.values())
    if largest == 2:  # from_clients counts the classes that it sees
        assert opened.fingerprint == FederatedDataset.from_clients(clients).fingerprint


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "uint64", "float16", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 2)])
def test_every_dtype_and_shape_comes_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    x = (np.random.default_rng(0).random((5, *shape)) * 2).astype(dtype)
    y = np.array([0.5, -1, np.nan, np.inf, 0])
    with DatasetWriter(tmp_path / "data", Field(shape, dtype, 0.5, -1.0), Field((), "float64"), None) as writer:
        writer.write("train", "a", x, y)
    opened = FederatedDataset.open(tmp_path / "data")
    assert opened.x == Field(shape, dtype, 0.5, -1.0)
    np.testing.assert_array_equal(opened.train.client(0)[0], x)
    np.testing.assert_array_equal(opened.train.client(0)[1], y)
    assert opened.train.client(0)[0].dtype == np.dtype(dtype)


def test_scale_is_part_of_the_fingerprint_and_provenance_is_not(tmp_path: Path) -> None:
    prints = []
    for k, (scale, provenance) in enumerate([(1.0, {}), (0.5, {}), (1.0, {"from": "a shop"})]):
        with DatasetWriter(tmp_path / str(k), Field((2,), "float32", scale), Y, 3, provenance=provenance) as writer:
            writer.write("train", "a", *rows(3))
        prints.append(FederatedDataset.open(tmp_path / str(k)).fingerprint)
    assert prints[0] != prints[1]
    assert prints[0] == prints[2]
    assert json.loads((tmp_path / "2" / "dataset.json").read_text())["provenance"] == {"from": "a shop"}


def test_an_opened_dataset_pickles_small_whatever_it_holds(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", X, Y, 3) as writer:
        writer.write("train", "a", *rows(10_000))
    pickled = pickle.dumps(FederatedDataset.open(tmp_path / "data"))
    assert len(pickled) < 1_000
    assert pickle.loads(pickled).train.sizes().tolist() == [10_000]


def test_a_dataset_that_was_replaced_on_the_way_is_refused(tmp_path: Path) -> None:
    pickled = pickle.dumps(write(tmp_path / "data"))
    shutil.rmtree(tmp_path / "data")
    with pytest.raises(DataError, match=r"dataset\.json is missing: .* not reachable from this machine"):
        pickle.loads(pickled)
    with DatasetWriter(tmp_path / "data", X, Y, 3) as writer:
        writer.write("train", "other", *rows(3))
    with pytest.raises(DataError, match=r"must hold the dataset with fingerprint .*, as when it was sent"):
        pickle.loads(pickled)


def test_nothing_is_left_of_an_interrupted_write(tmp_path: Path) -> None:
    def interrupted() -> None:
        with DatasetWriter(tmp_path / "data", X, Y, 3) as writer:
            writer.write("train", "a", *rows(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_there_before_the_end(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", X, Y, 3) as writer:
        writer.write("train", "a", *rows(3))
        assert not (tmp_path / "data").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data")
    with pytest.raises(DataError, match="data must not exist"):
        DatasetWriter(tmp_path / "data", X, Y, 3)


def test_returning_to_an_earlier_client_is_refused(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", X, Y, 3) as writer:
        writer.write("train", "a", *rows(1))
        writer.write("train", "b", *rows(1))
        with pytest.raises(DataError, match="split 'train' returns to client 'a' after 'b'"):
            writer.write("train", "a", *rows(1))


REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "shape": (("train", "a", np.zeros((1, 3), np.float32), [0]), r"client 'a' of split 'train': x must be rows of"),
    "dtype": (("train", "a", np.zeros((1, 2)), [0]), r"x must be rows of float32\[2\], but got float64"),
    "lengths": (("test", "a", *rows(2)[:1], rows(1)[1]), "client 'a' of split 'test': .* x has 2 and y has 1"),
    "label": (("train", "a", rows(1)[0], np.array([3])), r"labels must be in 0\.\.2, but go from 3 to 3"),
    "split": (("dev", "a", *rows(1)), "must be one of train, validation, test, but got 'dev'"),
    "empty": (("train", "a", *rows(0)), "client 'a' of split 'train': a training client must have at least one"),
    "no training client": (("test", "a", *rows(1)), "split 'train' must have at least one client"),
    "masked": (
        ("train", "a", np.ma.masked_array(np.zeros((2, 2), np.float32), mask=True), [0, 1]),
        "client 'a' .* x has 4 masked values",
    ),
    "ragged": (("train", "a", [[1], [1, 2]], [0, 1]), "client 'a' .* x is not an array"),
    "a surrogate": (("train", "\ud800", *rows(2)), "must be text that UTF-8 can hold"),
    "bytes": (("train", b"a", *rows(2)), "a client id must be a str or an int"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_client_named(tmp_path: Path, name: str) -> None:
    arguments, message = REFUSED[name]
    with pytest.raises(DataError, match=message), DatasetWriter(tmp_path / "data", X, Y, 3) as writer:
        writer.write(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("y", "num_classes"), [(Y, None), (Field((), "float32"), 3)])
def test_classes_go_with_integer_targets(tmp_path: Path, y: Field, num_classes: int | None) -> None:
    with pytest.raises(DataError, match="integer targets must come with num_classes"):
        DatasetWriter(tmp_path / "data", X, y, num_classes)


@pytest.mark.parametrize("name", ["train.arrow", "train.index.arrow", "test.arrow"])
def test_a_truncated_file_is_named_with_both_sizes(tmp_path: Path, name: str) -> None:
    write(tmp_path / "data")
    content = (tmp_path / "data" / name).read_bytes()
    (tmp_path / "data" / name).write_bytes(content[:-7])
    with pytest.raises(DataError, match=rf"{name} is damaged: expected {len(content)} .* found {len(content) - 7}"):
        FederatedDataset.open(tmp_path / "data")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "data")
    (tmp_path / "data" / "test.index.arrow").unlink()
    with pytest.raises(DataError, match=r"test\.index\.arrow is missing: expected \d+ bytes"):
        FederatedDataset.open(tmp_path / "data")


def test_a_file_of_the_right_size_that_is_not_arrow_is_named(tmp_path: Path) -> None:
    write(tmp_path / "data")
    path = tmp_path / "data" / "train.arrow"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(DataError, match=r"train\.arrow is damaged: expected an Arrow file"):
        FederatedDataset.open(tmp_path / "data")


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', "\udcff"])
def test_a_description_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    write(tmp_path / "data")
    (tmp_path / "data" / "dataset.json").write_text(text, errors="surrogateescape")
    with pytest.raises(DataError, match=r"dataset\.json"):
        FederatedDataset.open(tmp_path / "data")


def test_a_folder_that_is_no_dataset_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a prepared dataset"):
        FederatedDataset.open(tmp_path)


def test_a_writer_outside_its_block_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be written inside `with DatasetWriter"):
        DatasetWriter(tmp_path / "data", X, Y, 3).write("train", "a", *rows(2))


def test_a_whole_number_is_an_id_as_in_memory(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", X, Y, 3) as writer:
        writer.write("train", 7, *rows(2))  # type: ignore[arg-type]
    assert FederatedDataset.open(tmp_path / "data").train.id_of(0) == "7"
