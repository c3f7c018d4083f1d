"""What a killed process left aside is removed at the next start: only raysim's own names, only what nobody writes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import raysim
from raysim.data.prepare import prepare
from raysim.data.section import Digits
from raysim.report.build import build
from raysim.storage import atomic
from raysim.storage.remote.mirror import Mirror
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
