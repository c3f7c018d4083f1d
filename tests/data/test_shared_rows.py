"""Large rows lie in sealed memory, which other processes of the machine map and nobody can write to."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.data import shared_rows
from raysim.data.array_split import ArraySplit
from raysim.data.client_arrays import is_fixed
from raysim.data.shared_rows import SMALLEST_BYTES, joined, mapped_by_others
from raysim.errors import DataError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere rows are copied")

MANY = SMALLEST_BYTES // 4


def parts() -> list[np.ndarray[Any, Any]]:
    """Arrays that lie in memory in several ways, and one without rows."""
    draw = np.random.default_rng(0)
    large = draw.standard_normal((MANY // 6, 3, 2), np.float32)
    return [large, large[:0], large[:7, ::-1], np.asfortranarray(large[5:9]), large[::1000]]


def open_memories() -> int:
    gc.collect()
    found = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(os.path.lexists(link) and os.readlink(link).startswith("/memfd:raysim-rows") for link in found)


def test_rows_are_those_of_all_arrays() -> None:
    rows = joined(parts())
    np.testing.assert_array_equal(rows, np.concatenate(parts()))
    assert rows.dtype == np.float32
    assert shared_rows._memory_of(rows) is not None
    assert rows.ctypes.data % 64 == 0


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float16, np.float64])
def test_rows_of_every_type(dtype: Any) -> None:
    array = np.arange(2 * SMALLEST_BYTES // np.dtype(dtype).itemsize).astype(bool).astype(dtype)
    np.testing.assert_array_equal(joined([array]), array)


def test_nobody_can_write_to_them() -> None:
    rows = joined(parts())
    memory = shared_rows._memory_of(rows)
    assert memory is not None
    assert is_fixed(rows[3:])
    with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
        rows.flags.writeable = True
    with pytest.raises(PermissionError):
        os.pwrite(memory.opened.number, b"0", 0)
    with pytest.raises(PermissionError):
        os.ftruncate(memory.opened.number, 0)


def test_small_rows_are_copied() -> None:
    rows = joined([np.zeros(3), np.ones(2)])
    assert rows.tolist() == [0, 0, 0, 1, 1]
    assert shared_rows._memory_of(rows) is None
    assert is_fixed(rows)


def test_where_there_are_no_such_files_rows_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise OSError("no such files here")

    monkeypatch.setattr(os, "memfd_create", refused)
    rows = joined(parts())
    np.testing.assert_array_equal(rows, np.concatenate(parts()))
    assert shared_rows._memory_of(rows) is None
    assert is_fixed(rows)


def test_the_memory_is_free_with_the_last_view() -> None:
    before = open_memories()
    rows = joined(parts())[3:4]
    assert open_memories() > before
    del rows
    assert open_memories() == before


def split() -> ArraySplit:
    x = joined(parts())
    return ArraySplit(("a", "b"), x, np.arange(len(x)), np.array([0, 7, len(x)]))


def test_a_pickle_is_whole_anywhere_else() -> None:
    made = split()
    packed = pickle.dumps(made)
    assert len(packed) > made.x.nbytes
    received = pickle.loads(packed)
    np.testing.assert_array_equal(received.x, made.x)


READS = """
import pickle, sys
received = pickle.load(open(sys.argv[1], "rb"))
print(received.x.sum(dtype="float64"), received.x.shape, received.x.flags.writeable, received.ids, received.y[-1])
"""


def test_another_process_maps_them(tmp_path: Path) -> None:
    made = split()
    with mapped_by_others():
        packed = pickle.dumps(made)
    assert len(packed) < made.y.nbytes + 2000
    (tmp_path / "split").write_bytes(packed)
    command = [sys.executable, "-c", READS, str(tmp_path / "split")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    total = made.x.sum(dtype="float64")
    assert done.stdout.strip() == f"{total} {made.x.shape} False ('a', 'b') {len(made.x) - 1}"
    assert len(pickle.dumps(made)) > made.x.nbytes, "only in the block"


def test_a_part_of_the_rows_is_pickled_itself() -> None:
    rows = joined(parts())
    with mapped_by_others():
        np.testing.assert_array_equal(shared_rows.from_pickle(shared_rows.to_pickle(rows[3:8])), rows[3:8])
        assert isinstance(shared_rows.to_pickle(rows), shared_rows.MappedRows)


def test_a_dataset_of_a_dataset_s_arrays_shares_their_memory() -> None:
    draw = np.random.default_rng(0)
    clients = {f"c{i}": (draw.standard_normal((MANY // 8, 6), np.float32), np.zeros(MANY // 8)) for i in range(4)}
    first = raysim.FederatedDataset.from_clients(clients)
    again = raysim.FederatedDataset.from_clients({f"c{i}": first.train.client(i) for i in range(4)})
    one, other = first.train.arrays(), again.train.arrays()
    assert one is not None
    assert other is not None
    assert np.shares_memory(one.x, other.x)
    assert first.fingerprint == again.fingerprint


def other_file(folder: Path) -> Path:
    """A file that is long enough to be mapped in place of the rows."""
    (folder / "other").write_bytes(bytes(2 * SMALLEST_BYTES))
    return folder / "other"


def put_in_place_of(memory: shared_rows.SealedMemory, path: Path) -> None:
    """Give the file the number of the rows' one, as in a script that closes its files and opens others."""
    opened = os.open(path, os.O_RDONLY)
    os.dup2(opened, memory.opened.number)
    os.close(opened)


def test_rows_whose_file_a_script_has_closed_are_pickled_themselves(tmp_path: Path) -> None:
    rows = joined(parts())
    memory = shared_rows._memory_of(rows)
    assert memory is not None
    os.close(memory.opened.number)
    with mapped_by_others():
        assert shared_rows.to_pickle(rows) is rows
    opened = os.open(other_file(tmp_path), os.O_RDONLY)
    os.dup2(opened, memory.opened.number)
    with mapped_by_others():
        assert shared_rows.to_pickle(rows) is rows
    still, fd = os.fstat(opened), memory.opened.number
    del rows, memory
    gc.collect()
    assert os.path.samestat(os.fstat(fd), still), "the script's file stays open"
    for file in {opened, fd}:
        os.close(file)


def test_another_file_of_the_number_is_not_mapped(tmp_path: Path) -> None:
    rows = joined(parts())
    memory = shared_rows._memory_of(rows)
    assert memory is not None
    with mapped_by_others():
        packed = shared_rows.to_pickle(rows)
    os.mkfifo(tmp_path / "pipe")
    read = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    put_in_place_of(memory, other_file(tmp_path))
    with pytest.raises(DataError, match="are not at /proc/"):
        shared_rows.from_pickle(packed)
    os.dup2(read, memory.opened.number)
    with pytest.raises(DataError, match="are not at /proc/"):
        shared_rows.from_pickle(packed)
    os.close(memory.opened.number)
    os.close(read)
    with pytest.raises(DataError, match=r"os\.closerange"):
        shared_rows.from_pickle(packed)
