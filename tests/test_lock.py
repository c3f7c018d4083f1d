"""A run's folder has one writer at a time, and nothing is left of a writer that died."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.storage import lock

Make = Callable[..., raysim.Experiment]

WRITER = """
import sys, time
from pathlib import Path
from raysim.storage.lock import locked
with locked(Path(sys.argv[1]), "three/trial-0"):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.0)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that writes to tmp_path / "three" / "trial-0"."""
    folder = tmp_path / "three" / "trial-0"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_second_writer_is_refused_and_told_who_the_first_is(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(raysim.RunFolderError) as refused, lock.locked(tmp_path / "three" / "trial-0"):
        pass
    for part in (f"process {writer.pid} on ", "raysim attach three/trial-0", "raysim stop three/trial-0", "--path"):
        assert part in str(refused.value)


def test_a_folder_of_several_runs_is_in_use_while_one_of_them_is(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(raysim.RunFolderError, match=r"three/trial-0 is being written by"):
        lock.check_free(tmp_path / "three")
    lock.check_free(tmp_path / "four")


def test_a_killed_writer_holds_nothing(writer: subprocess.Popen[str], tmp_path: Path) -> None:
    folder = tmp_path / "three" / "trial-0"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    lock.check_free(tmp_path / "three")
    with lock.locked(folder):
        assert json.loads((folder / lock.FILE).read_text())["run"] is None
    assert (folder / lock.FILE).read_text() == ""


@pytest.mark.usefixtures("writer")
def test_a_disk_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("raysim.storage.lock.fcntl.flock", unsupported)
    with lock.locked(tmp_path / "three" / "trial-0"):
        pass
    assert "cannot be locked" in caplog.text


def test_a_run_that_is_under_way_is_not_written_over_or_gone_on_with(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    folder = tmp_path / "run"
    steps = raysim.rounds(experiment(), dataset=dataset, path=folder)
    next(steps)
    before = sorted(path.name for path in folder.iterdir())
    for resume, overwrite in ((True, False), (False, True), (False, False)):
        with pytest.raises(raysim.RunFolderError, match="is being written by"):
            raysim.run(experiment(), dataset=dataset, path=folder, resume=resume, overwrite=overwrite)
    with (
        raysim.Runs(experiment(), dataset=dataset) as runs,
        pytest.raises(raysim.RunFolderError, match="is being written by"),
    ):
        runs.start([(experiment(), folder)], overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == before
    steps.close()  # type: ignore[attr-defined]
    assert raysim.run(experiment(), dataset=dataset, path=folder, resume=True).rounds.num_rows == 4
    assert raysim.run(experiment(rounds=1), dataset=dataset, path=folder, overwrite=True).rounds.num_rows == 1


def test_runs_let_go_of_a_folder_when_its_run_ends(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with raysim.Runs(experiment(), dataset=dataset) as runs:
        runs.start([(experiment(), tmp_path / "run")])
        with pytest.raises(raysim.RunFolderError, match="is being written by"):
            lock.check_free(tmp_path / "run")
        assert [report.finished for report in runs.reports()][-1]
        lock.check_free(tmp_path / "run")


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_whose_folder_was_moved_writes_nothing_into_the_one_in_its_place(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, seed: int
) -> None:
    path, moved = tmp_path / "run", tmp_path / "moved"
    first = raysim.rounds(experiment(), dataset=dataset, path=path)
    next(first)
    path.rename(moved)
    raysim.run(experiment(seed=seed, rounds=2), dataset=dataset, path=path, progress=False)
    files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(raysim.RunFolderError, match="run was deleted or moved while the run wrote to it"):
        next(first)
    assert files == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    assert raysim.run(experiment(), dataset=dataset, path=moved, resume=True, progress=False).rounds.num_rows == 4


def test_who_holds_a_folder_in_this_process_is_told_how_to_end(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    steps = raysim.rounds(experiment(), dataset=dataset, path=tmp_path / "run")
    next(steps)
    with pytest.raises(raysim.RunFolderError, match=r"That is this process: .* \(`close\(\)`"):
        raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", overwrite=True, progress=False)


def test_a_lock_that_somebody_deletes_ends_no_run(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    steps = raysim.rounds(experiment(), dataset=dataset, path=tmp_path / "run")
    next(steps)
    (tmp_path / "run" / lock.FILE).unlink()
    assert [each.index for each in steps] == [1, 2, 3]


def test_a_lock_that_holds_something_else_is_not_emptied(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """As a hard link, in a folder from elsewhere, to a file of this user's."""
    run, mine = tmp_path / "run", tmp_path / "mine.txt"
    raysim.run(experiment(), dataset=dataset, path=run, progress=False)
    mine.write_text("mine")
    (run / lock.FILE).unlink()
    (run / lock.FILE).hardlink_to(mine)
    with pytest.raises(raysim.RunFolderError, match=r"\.lock must be a lock that raysim wrote"):
        raysim.resume(run, dataset=dataset, rounds=6, progress=False)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("left", ['{"ho', '{"host": "a", "process": 1, "since": "2026", "run": null}'])
def test_a_lock_of_a_killed_writer_is_taken_over(
    left: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    run = tmp_path / "run"
    raysim.run(experiment(), dataset=dataset, path=run, progress=False)
    (run / lock.FILE).write_text(left)
    assert raysim.resume(run, dataset=dataset, rounds=6, progress=False).rounds.num_rows == 6
    assert not (run / lock.FILE).read_text()


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_lock_that_cannot_be_emptied_is_named_and_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk that copies what it changes (Btrfs, ZFS) has no room for a shorter file either."""

    def fails() -> None:
        with lock.locked(tmp_path):
            monkeypatch.setattr(lock._LockFile, "truncate", no_room)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    with pytest.raises(raysim.DiskError, match=r"\.lock could not be written: No space left"), lock.locked(tmp_path):
        pass
    monkeypatch.undo()
    with lock.locked(tmp_path):
        pass
    assert not (tmp_path / lock.FILE).read_text()


@pytest.mark.parametrize("held", [lock.alone, lock.among_others])
def test_what_a_lock_s_name_leads_to_is_not_written_to(held: Callable[..., Any], tmp_path: Path) -> None:
    """As in a cache that several users share."""
    file, mine = tmp_path / ".lock", tmp_path / "mine.txt"
    mine.write_text("mine")
    file.symlink_to(mine)
    for use in (lambda: held(file).__enter__(), lambda: lock.is_held(file)):
        with pytest.raises(raysim.DiskError, match="is a symbolic link: delete it"):
            use()
    file.unlink()
    file.symlink_to(tmp_path / "new")
    with pytest.raises(raysim.DiskError, match="is a symbolic link"), held(file):
        pass
    file.unlink()
    file.hardlink_to(mine)
    with held(file):
        assert lock.is_held(file)
    assert not lock.is_held(file)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(raysim.DiskError, match="but is a pipe"), held(file):
        pass
    assert mine.read_text() == "mine"
    assert not (tmp_path / "new").exists()


def test_a_forked_process_that_leaves_the_block_leaves_the_lock(tmp_path: Path) -> None:
    held = lock.alone(tmp_path / ".lock")
    with held:
        process = os.fork()
        if not process:
            try:
                held.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(process, 0)
        assert lock.is_held(tmp_path / ".lock")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("opens", ["another", "none"])
def test_a_script_that_closes_all_files_ends_the_run_and_keeps_its_own(
    opens: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """The lock's number is another file's then: that is not emptied at the end."""
    run, mine = tmp_path / "run", tmp_path / "mine.txt"
    steps = raysim.rounds(experiment(), dataset=dataset, path=run)
    next(steps)
    numbers = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
    (number,) = (each for each in numbers if os.path.samestat(os.fstat(each), os.stat(run / lock.FILE)))
    mine.write_text("mine")
    os.close(number)
    if opens == "another":
        opened = os.open(mine, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
    with pytest.raises(raysim.RunFolderError, match=r"is locked no more.*os\.closerange"):
        list(steps)
    assert mine.read_text() == "mine"
    if opens == "another":
        assert os.path.samestat(os.fstat(number), os.stat(mine)), "it stays open"
        os.close(number)
    assert raysim.resume(run, dataset=dataset, rounds=6, progress=False).rounds.num_rows == 6


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("held", [lock.alone, lock.among_others, lock.in_turn, lock.of_folder])
def test_the_end_of_a_lock_closes_and_unlocks_no_file_of_the_scripts(held: Callable[..., Any], tmp_path: Path) -> None:
    locked, mine = tmp_path / "folder" / lock.FILE, tmp_path / "mine.txt"
    locked.parent.mkdir()
    mine.write_text("mine")
    of_folder = held in {lock.in_turn, lock.of_folder}
    with held(locked.parent if of_folder else locked):
        opened = os.open(mine, os.O_RDWR)
        fcntl.flock(opened, fcntl.LOCK_EX)
        found = os.stat(locked.parent if held is lock.of_folder else locked)
        numbers = [int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")]
        (number,) = (each for each in numbers if os.path.samestat(os.fstat(each), found))
        os.dup2(opened, number)
        os.close(opened)
    assert os.path.samestat(os.fstat(number), os.stat(mine))
    with mine.open() as again, pytest.raises(BlockingIOError):
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(number)


def test_a_disk_that_does_not_answer_loses_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(file: int) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with lock.locked(tmp_path) as held:
        monkeypatch.setattr(os, "stat", stale)
        assert not held.is_lost
        monkeypatch.undo()
        assert not held.is_lost
