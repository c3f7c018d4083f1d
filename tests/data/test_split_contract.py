"""What every split promises, held by all: in memory, memory-mapped, generated, and some clients of another."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from raysim.arrays import Int64s
from raysim.data import DatasetWriter, FederatedDataset, Field, Split
from raysim.data.generated_split import GeneratedSplit
from raysim.data.subset import Subset
from raysim.errors import DataError

NUM_CLIENTS = 7


def size_of(client: int) -> int:
    return (client * 5) % 7  # 0 5 3 1 6 4 2: client 0 has no examples


def rows_of(client: int) -> tuple[npt.NDArray[np.float32], Int64s]:
    """Row r of client k is full of 100 k + r, and its label is r."""
    row = np.arange(size_of(client))
    x = np.broadcast_to((100 * client + row)[:, None, None], (len(row), 2, 3)).astype(np.float32)
    return x, row.astype(np.int64)


@dataclass(frozen=True)
class Arithmetic:
    def sizes(self, clients: Int64s) -> Int64s:
        return clients * 5 % 7

    def client(self, client: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        return rows_of(client)


def members(count: int) -> Int64s:
    return np.arange(count, dtype=np.int64)


def in_memory(tmp_path: Path) -> Split:
    clients = {str(k): rows_of(k) for k in range(NUM_CLIENTS)}
    return FederatedDataset.from_clients(train={"t": rows_of(1)}, test=clients).split("test")


def mapped(tmp_path: Path, rows_per_batch: int) -> Split:
    x, y = Field((2, 3), "float32"), Field((), "int64")
    with DatasetWriter(tmp_path / "mapped", x, y, 7, batch_bytes=rows_per_batch * (24 + 8)) as writer:
        writer.write("train", "t", *rows_of(1))
        for k in range(NUM_CLIENTS):
            writer.write("test", str(k), *rows_of(k))
    return FederatedDataset.open(tmp_path / "mapped").split("test")


def generated(tmp_path: Path) -> Split:
    return GeneratedSplit(Arithmetic(), NUM_CLIENTS)


def generated_members(tmp_path: Path) -> Split:
    return GeneratedSplit(Arithmetic(), NUM_CLIENTS, partial(members, NUM_CLIENTS))


def subset(tmp_path: Path) -> Split:
    """The clients whose numbers are even, of twice as many with every one in between empty."""
    clients: dict[str, Any] = {}
    for k in range(NUM_CLIENTS):
        clients[str(k)], clients[f"between {k}"] = rows_of(k), (np.zeros((0, 2, 3), np.float32), np.zeros(0, np.int64))
    whole = FederatedDataset.from_clients(train={"t": rows_of(1)}, test=clients).split("test")
    return Subset(whole, 2 * members(NUM_CLIENTS))


SPLITS: dict[str, Callable[[Path], Split]] = {
    "array": in_memory,
    "arrow, one batch": partial(mapped, rows_per_batch=1000),
    "arrow, clients across batches": partial(mapped, rows_per_batch=2),
    "generated": generated,
    "subset": subset,
    "generated, of members": generated_members,
}


@pytest.fixture(params=SPLITS, ids=str)
def split(request: pytest.FixtureRequest, tmp_path: Path) -> Split:
    return SPLITS[request.param](tmp_path)


def test_length_is_the_number_of_clients(split: Split) -> None:
    assert len(split) == NUM_CLIENTS
    assert repr(split) == f"{type(split).__name__}(7 clients)"


def test_sizes_of_all_and_of_some(split: Split) -> None:
    assert split.sizes().tolist() == [0, 5, 3, 1, 6, 4, 2]
    assert split.sizes(np.array([4, 0, 4])).tolist() == [6, 0, 6]
    assert split.sizes(np.array([], np.int64)).tolist() == []
    assert split.sizes().dtype == split.sizes(np.array([1])).dtype == np.int64


def test_a_client_has_its_own_rows_in_order(split: Split) -> None:
    for position in (3, 0, 6, 1, 2, 5, 4):
        x, y = split.client(position)
        expected_x, expected_y = rows_of(position)
        np.testing.assert_array_equal(x, expected_x)
        np.testing.assert_array_equal(y, expected_y)
        assert (x.dtype.name, y.dtype.name, x.shape) == ("float32", "int64", (size_of(position), 2, 3))


def test_where_there_are_arrays_a_client_has_the_rows_from_its_first_on(split: Split) -> None:
    if (arrays := split.arrays()) is None:
        return
    assert len(arrays.first_rows) == NUM_CLIENTS
    for position, first in enumerate(arrays.first_rows.tolist()):
        x, y = split.client(position)
        np.testing.assert_array_equal(arrays.x[first : first + len(x)], x)
        np.testing.assert_array_equal(arrays.y[first : first + len(y)], y)


def test_splits_in_one_array_say_so_and_no_others(tmp_path: Path) -> None:
    in_one = {name for name, make in SPLITS.items() if make(tmp_path / name).arrays() is not None}
    assert in_one == {"array", "arrow, one batch", "subset"}


def test_rows_are_read_only(split: Split) -> None:
    for position in range(NUM_CLIENTS):
        x, y = split.client(position)
        assert not x.flags.writeable
        assert not y.flags.writeable


def test_ids_and_positions_are_inverse(split: Split) -> None:
    for position in range(NUM_CLIENTS):
        assert split.position_of(split.id_of(position)) == position


@pytest.mark.parametrize("unknown", ["7", "-1", "01", "six", "", "\u00b2"])
def test_an_unknown_id_is_an_error_with_the_nearest(split: Split, unknown: str) -> None:
    with pytest.raises(DataError, match=r"no client .* among the 7 of this split; the nearest is '\d'"):
        split.position_of(unknown)


@pytest.mark.parametrize("position", [-1, NUM_CLIENTS])
def test_a_position_outside_is_an_index_error(split: Split, position: int) -> None:
    with pytest.raises(IndexError, match=rf"must be in 0\.\.6, but got {position}"):
        split.client(position)
    with pytest.raises(IndexError, match=rf"must be in 0\.\.6, but got {position}"):
        split.id_of(position)


def test_a_pickled_copy_is_the_same_split(split: Split) -> None:
    split.position_of("3")  # what is looked up lazily does not travel
    copy: Split = pickle.loads(pickle.dumps(split))
    assert copy.sizes().tolist() == split.sizes().tolist()
    for position in range(NUM_CLIENTS):
        assert copy.id_of(position) == split.id_of(position)
        for mine, theirs in zip(copy.client(position), split.client(position), strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert not mine.flags.writeable


def test_arrays_pickle_out_of_band(tmp_path: Path) -> None:
    """What lets Ray share them: the bytes of x and y are handed over as buffers, not copied into the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(in_memory(tmp_path), protocol=5, buffer_callback=buffers.append)
    assert sum(buffer.raw().nbytes for buffer in buffers) >= 21 * (24 + 8)


def test_a_mapped_split_pickles_as_its_path(tmp_path: Path) -> None:
    split = mapped(tmp_path, rows_per_batch=1000)
    assert len(pickle.dumps(split)) < 300 + len(str(tmp_path))


def test_members_are_not_computed_before_they_are_needed() -> None:
    def never() -> Int64s:
        raise AssertionError("computed")

    assert len(GeneratedSplit(Arithmetic(), 10**9, never)) == 10**9


def test_members_keep_their_ids_wherever_they_stand() -> None:
    split = GeneratedSplit(Arithmetic(), 3, lambda: np.array([2, 5, 6]))
    assert [split.id_of(position) for position in range(3)] == ["2", "5", "6"]
    assert split.position_of("5") == 1
    assert split.sizes().tolist() == [size_of(2), size_of(5), size_of(6)]
    np.testing.assert_array_equal(split.client(2)[0], rows_of(6)[0])
    with pytest.raises(DataError, match="no client '3' among the 3 of this split; the nearest is '5'"):
        split.position_of("3")


def test_mapped_rows_are_views_unless_they_cross_a_batch(tmp_path: Path) -> None:
    split = mapped(tmp_path, rows_per_batch=1000)
    first, second = split.client(1)[0], split.client(1)[0]
    assert np.shares_memory(first, second)
    assert first.ctypes.data + first.nbytes == split.client(2)[0].ctypes.data
