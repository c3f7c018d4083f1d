"""Rows that a dataset shares with a script, and that change later: a run is refused, or warns at its end."""

from __future__ import annotations

import errno
import mmap
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.data import FederatedDataset, client_arrays, lent_rows
from raysim.errors import DataError
from tests.support.run_folders import experiment

Change = Callable[[], None]

ROWS = np.arange(24.0).reshape(8, 3) / 24


def older_view(path: Path) -> tuple[Any, Change]:
    rows = ROWS.copy()
    view = rows[:]
    rows.flags.writeable = False
    return rows, lambda: np.copyto(view, view[::-1].copy())


def flag(path: Path) -> tuple[Any, Change]:
    rows = ROWS.copy()
    rows.flags.writeable = False

    def change() -> None:
        rows.flags.writeable = True
        rows[0, 0] = 100

    return rows, change


def file(path: Path) -> tuple[Any, Change]:
    np.save(path, ROWS)

    def change() -> None:
        written = np.load(path, mmap_mode="r+")
        written[0, 0] = 100
        written.flush()

    return np.load(path, mmap_mode="r"), change


def cut_off(path: Path) -> tuple[Any, Change]:
    np.save(path, np.zeros((4096, 3)))

    def change() -> None:
        path.write_bytes(b"")

    return np.load(path, mmap_mode="r"), change


def dataset(rows: Any) -> FederatedDataset:
    labels = np.arange(len(rows)) % 2
    half = len(rows) // 2
    clients = {"a": (rows[:half], labels[:half]), "b": (rows[half:], labels[half:])}
    made = FederatedDataset.from_clients(clients)
    assert np.shares_memory(made.train.client(0)[0], rows)
    return made


EXPERIMENT = experiment(data=None, cohort={"size": 2}, rounds=2, engine={"workers": 0})

ways = pytest.mark.parametrize("way", [older_view, flag, file])


@ways
def test_a_run_that_begins_after_the_change_is_refused(way: Callable[[Path], Any], tmp_path: Path) -> None:
    rows, change = way(tmp_path / "x.npy")
    data = dataset(rows)
    raysim.run(EXPERIMENT, dataset=data, path=tmp_path / "before", progress=False)
    change()
    for held in (data, data.hold_out(0.5)):
        with pytest.raises(DataError, match="x of the split 'train' was changed after the dataset was made"):
            raysim.run(EXPERIMENT, dataset=held, path=tmp_path / "after", progress=False)
    with pytest.raises(DataError, match="was changed after"):
        raysim.evaluate(tmp_path / "before", dataset=dataset(older_view(tmp_path)[0]), data=data)
    rows.flags.writeable = False
    raysim.run(EXPERIMENT, dataset=dataset(rows), path=tmp_path / "after", progress=False)


@ways
def test_a_run_under_way_warns_at_its_end(
    way: Callable[[Path], Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, change = way(tmp_path / "x.npy")
    steps = raysim.rounds(EXPERIMENT, dataset=dataset(rows))
    next(steps)
    change()
    assert not caplog.messages
    list(steps)
    [said] = caplog.messages
    assert said.startswith("x of the split 'train' was changed while raysim worked with it")


def test_a_logger_s_change_is_told_by_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows, change = older_view(tmp_path)
    how: Any = {
        "path": tmp_path / "run",
        "progress": False,
        "loggers": [lambda row: change() if not row["round"] else None],
    }
    raysim.run(EXPERIMENT, dataset=dataset(rows), **how)
    assert sum("was changed while raysim worked with it" in said for said in caplog.messages) == 1


def test_several_runs_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows, change = older_view(tmp_path)
    with raysim.Runs(EXPERIMENT, dataset=dataset(rows)) as runs:
        runs.start([(EXPERIMENT, tmp_path / "run")])
        change()
        list(runs.reports())
    assert sum("was changed while raysim worked with it" in said for said in caplog.messages) == 1


def test_a_file_that_was_cut_off_is_not_read(tmp_path: Path) -> None:
    rows, change = cut_off(tmp_path / "x.npy")
    data = dataset(rows)
    change()
    with pytest.raises(DataError, match="was changed after"):
        lent_rows.check(data.splits)


CLOSES = """
import os, sys
import numpy as np
from raysim.data import FederatedDataset, client_arrays, lent_rows
rows = np.load(sys.argv[1], mmap_mode="r")
dataset = FederatedDataset.from_clients({"a": (rows[:4], np.zeros(4)), "b": (rows[4:], np.zeros(4))})
os.closerange(3, os.sysconf("SC_OPEN_MAX"))
lent_rows.check(dataset.splits)
print(dataset.train.client(1)[0].sum())
"""


def test_rows_stay_mapped_where_a_script_closes_its_files(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    command = [sys.executable, "-c", CLOSES, str(tmp_path / "rows.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) == ROWS[4:].sum()


def test_pieces_of_large_arrays_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent_rows, "_WHOLE_BYTES", 100)
    monkeypatch.setattr(lent_rows, "_PIECE_BYTES", 16)
    rows, change = older_view(tmp_path)
    data = dataset(rows)
    lent_rows.check(data.splits)
    change()
    with pytest.raises(DataError, match="was changed after"):
        lent_rows.check(data.splits)


@pytest.mark.parametrize(
    ("error", "is_said"),
    [(OSError(errno.EBADF, "closed"), False), (ValueError("no file"), False), (OSError(errno.ESTALE, "stale"), True)],
    ids=["closed by the script", "mapped without its file", "a network disk"],
)
def test_a_map_whose_size_is_not_told_is_whole_unless_its_disk_does_not_answer(error: Exception, is_said: bool) -> None:
    class Untold(mmap.mmap):
        def size(self) -> int:
            raise error

    rows = np.frombuffer(Untold(-1, 64), np.uint8)
    with pytest.raises(OSError, match="stale") if is_said else nullcontext():
        assert not client_arrays.is_cut_off(rows)
