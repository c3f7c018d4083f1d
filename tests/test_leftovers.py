"""What a killed process left aside is removed at the next start: only raysim's own names, only what nobody writes."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

import raysim
from raysim.data import DatasetWriter, FederatedDataset, Field
from raysim.data.cache import open_or_build
from raysim.data.copies import fetch_copy
from raysim.data.prepare import prepare
from raysim.data.section import Digits
from raysim.report.build import build
from raysim.storage import atomic, lock
from raysim.storage.cache import datasets
from raysim.storage.remote.mirror import Mirror
from raysim.storage.remote.remote import Remote
from tests.support.run_folders import accuracies, experiment, write

OTHERS = (".git", ".DS_Store", ".rounds.parquet.swp", "rounds.parquet.0123456789abcdef0123456789abcdef", ".lock")


def leave(folder: Path, age_s: float) -> list[Path]:
    """A file and a folder of `beside`, last written this long ago; and files of others."""
    folder.mkdir(parents=True, exist_ok=True)
    left = [atomic.beside(folder / "rounds.parquet"), atomic.beside(folder / "set")]
    left[0].write_text("half")
    left[1].mkdir()
    (left[1] / "train.arrow").write_text("half")
    for path in (left[0], left[1] / "train.arrow", left[1]):
        os.utime(path, (time.time() - age_s,) * 2)
    for name in OTHERS:
        (folder / name).touch()
    return left


def test_only_what_is_old_and_ours_is_removed(tmp_path: Path) -> None:
    old, young = leave(tmp_path, atomic.STALE_S + 60), leave(tmp_path, atomic.STALE_S / 2)
    below = leave(tmp_path / "below", atomic.STALE_S + 60)
    link = atomic.beside(tmp_path / "link")
    link.symlink_to(tmp_path / "below")
    atomic.sweep(tmp_path)
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in (*young, *below))
    atomic.sweep(tmp_path, older_than_s=0)
    assert not any(os.path.lexists(path) for path in (*young, link))
    assert all(path.exists() for path in (*below, *(tmp_path / name for name in OTHERS)))
    atomic.sweep(tmp_path / "none")


def test_a_folder_in_which_a_file_is_written_is_young(tmp_path: Path) -> None:
    _, folder = leave(tmp_path, atomic.STALE_S + 60)
    (folder / "test.arrow").touch()
    os.utime(folder, (0, 0))
    atomic.sweep(tmp_path)
    assert folder.exists()


def test_a_folder_in_which_a_process_is_at_work_stays_whatever_the_clocks_say(tmp_path: Path) -> None:
    """One disk has the time of another machine's clock."""
    with atomic.folder_aside(tmp_path / "set") as folder:
        (folder / "train.arrow").write_text("half")
        for path in (folder / "train.arrow", folder):
            os.utime(path, (0, 0))
        atomic.sweep(tmp_path)
        atomic.sweep(tmp_path, older_than_s=0)
        atomic.sweep_folders(tmp_path / "set")
        assert (folder / "train.arrow").exists()
    assert not folder.exists()


def write_under_clock_ahead(path: Path, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a dataset while another process, whose clock is a day ahead, removes what is old in the folder `at`."""
    one = np.ones((4, 2), np.float32), np.array([0, 1, 0, 1])
    with DatasetWriter(path, Field((2,), "float32"), Field((), "int64"), 2) as writer:
        writer.write("train", "a", *one)
        sweep_under_clock_ahead(at, monkeypatch)
        writer.write("train", "b", *one)


def sweep_under_clock_ahead(at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s = time.time() + 2 * atomic.STALE_S
    assert any(atomic.is_beside(path) for path in at.iterdir())
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: ahead_s)
        atomic.sweep(at)


def test_a_dataset_is_written_under_a_clock_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_under_clock_ahead(tmp_path / "own", tmp_path, monkeypatch)
    assert len(FederatedDataset.open(tmp_path / "own").train) == 2
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    opened = open_or_build({"a": 1}, lambda path: write_under_clock_ahead(path, path.parent, monkeypatch))
    assert len(opened.train) == 2


def test_a_dataset_that_is_written_but_not_at_its_place_stays_under_a_clock_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))

    def build(path: Path) -> None:
        with DatasetWriter(path, Field((2,), "float32"), Field((), "int64"), 2) as writer:
            writer.write("train", "a", np.ones((2, 2), np.float32), np.array([0, 1]))
        sweep_under_clock_ahead(datasets(), monkeypatch)

    assert len(open_or_build({"a": 1}, build).train) == 1


def test_a_folder_in_whose_folder_a_file_is_written_is_young(tmp_path: Path) -> None:
    _, folder = leave(tmp_path, atomic.STALE_S + 60)
    (folder / "set").mkdir()
    (folder / "set" / "train.arrow").touch()
    for path in (folder / "set", folder):
        os.utime(path, (0, 0))
    atomic.sweep(tmp_path)
    assert folder.exists()


def test_a_copy_is_fetched_under_a_clock_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    with DatasetWriter(tmp_path / "there", Field((2,), "float32"), Field((), "int64"), 2) as writer:
        writer.write("train", "a", np.ones((2, 2), np.float32), np.array([0, 1]))
    source, read = Remote((tmp_path / "there").as_uri()), Remote.read

    def reading(self: Remote, name: str) -> Iterator[bytes]:
        yield from read(self, name)
        if name != "dataset.json":
            sweep_under_clock_ahead(datasets(), monkeypatch)

    monkeypatch.setattr(Remote, "read", reading)
    assert FederatedDataset.open(fetch_copy("key", None, source)).fingerprint


def test_a_folder_that_is_taken_for_a_left_one_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_folder, made = lock.of_folder, []

    def after_a_sweep(folder: Path) -> AbstractContextManager[None]:
        made.append(folder)
        if len(made) == 1:
            atomic.sweep_folders(tmp_path / "figures")
        return of_folder(folder)

    monkeypatch.setattr(lock, "of_folder", after_a_sweep)
    with atomic.folder_aside(tmp_path / "figures") as folder:
        assert folder.exists()
        assert made[1:] == [folder]


def test_where_folders_have_no_locks_their_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", none)
    _, old = leave(tmp_path, atomic.STALE_S + 60)
    with atomic.folder_aside(tmp_path / "set") as folder:
        atomic.sweep_folders(tmp_path / "set")
        assert folder.exists()
        assert old.exists()
        atomic.sweep(tmp_path)
        assert folder.exists()
        assert not old.exists()


def test_a_report_removes_what_a_killed_one_has_just_left(tmp_path: Path) -> None:
    run, left = write(tmp_path / "run", accuracies(0.5)), atomic.beside(tmp_path / "out" / "figures")
    left.mkdir(parents=True)
    (left / "curve.png").write_bytes(b"half")
    others = leave(tmp_path / "out", age_s=0)
    with atomic.folder_aside(tmp_path / "out" / "figures") as under_way:
        build([run], tmp_path / "out")
        assert under_way.exists()
    assert not left.exists()
    assert all(path.exists() for path in others)


def test_a_resumed_run_removes_what_the_killed_one_left(tmp_path: Path) -> None:
    whole = experiment(engine={"workers": 0})
    raysim.run(whole, path=tmp_path / "run", progress=False)
    left = [path for name in (".", "checkpoints", "clients") for path in leave(tmp_path / "run" / name, age_s=0)]
    raysim.resume(tmp_path / "run", rounds=3, progress=False)
    assert not any(path.exists() for path in left)
    assert (tmp_path / "run" / ".git").exists()


def test_a_report_and_a_prepared_dataset_remove_what_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = leave(tmp_path / "out", atomic.STALE_S + 60)
    build([write(tmp_path / "run", accuracies(0.5))], tmp_path / "out")
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    old += leave(tmp_path / "cache" / "datasets", atomic.STALE_S + 60)
    young = leave(tmp_path / "cache" / "datasets", age_s=0)
    prepare(Digits(clients=5), seed=0)
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in young), "another process may be writing it"


def test_an_upload_removes_what_a_killed_one_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "cache"))
    mirror = Mirror.of(f"file://{tmp_path / 'there' / 'run'}")
    write(mirror.path, accuracies(0.5))
    left = leave(mirror.path.parent, age_s=0)
    there = tmp_path / "there" / "run" / "checkpoints"
    left += leave(there, atomic.STALE_S + 60)
    young = leave(there, age_s=0)
    mirror.push()
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in young), "another machine may be writing it"
