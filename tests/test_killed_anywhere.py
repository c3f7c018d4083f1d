"""A process that is killed before any one change of a folder leaves a run, or a folder in which none has begun.

Of both, `--resume` and `--overwrite` make a run again. Nothing in between may be left, which both would refuse.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import raysim
from raysim.api import series
from raysim.errors import DiskError
from raysim.report import runs
from raysim.run_folder import beginning, experiment_record, files, round_table, series_record
from raysim.run_folder.branch import branch
from raysim.run_folder.writer import RunFolder
from raysim.storage import atomic, lock
from tests.support import command
from tests.support.kills import KILLED, kill_before

Make = Callable[..., raysim.Experiment]

MAKERS = ("a run", "a sweep")

OLD = ("rounds.parquet", "curve.png", "checkpoints/round-000002.safetensors", "checkpoints/x", "clients/x", "clients/y")
"""What a folder holds before it is overwritten."""


def make(maker: str, path: Path) -> None:
    """Begin a run, or a sweep, in a folder; what is there is overwritten."""
    tried = raysim.Experiment.model_validate(
        {"data": {"name": "digits", "clients": 4}, "model": {"name": "linear"}, "cohort": {"size": 2}}
    )
    if maker == "a run":
        with lock.locked(path):
            RunFolder.create(path, tried, "fingerprint", overwrite=True)
    else:
        write = partial(series_record.write_sweep, path, tried, {"rounds": [1, 2]})
        with series.opened(path, tried, True, False, lambda _: None, write):
            pass


def is_sound(maker: str, path: Path) -> bool:
    """Whether the folder can be overwritten, and can be gone on with."""
    RunFolder.check_free(path, overwrite=True)
    if not beginning.is_unbegun(path):
        experiment_record.stored_experiment(path)
        return maker == "a run" or series_record.stored_sweep(path) is not None
    return True


def killed_at(place: int, watched: Path, work: Callable[[], object]) -> tuple[str, bool]:
    """Do the work in a process that is killed before this change, counted from 0; return the change, and whether the
    process was killed."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        kill_before(place, str(watched), writer)
        work()
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), code
    return said, code == KILLED


def killed_everywhere(maker: str, at: Path, full: bool) -> list[str]:
    """Make the folder again and again, killed one change later each time; return the changes before which it was.

    full: whether the folder holds a run, or a sweep, that is overwritten.
    """
    changes: list[str] = []
    while True:
        path = at / f"{maker}-{full}-{len(changes)}"
        if full:
            make(maker, path)
            for name in OLD:
                (path / name).parent.mkdir(exist_ok=True)
                (path / name).write_text("of the old run")
        said, is_killed = killed_at(len(changes), path, partial(make, maker, path))
        assert is_sound(maker, path), said
        # A checkpoint alone could not be gone on from.
        assert not files.checkpoints(path) or all((path / name).exists() for name in OLD), said
        make(maker, path)
        assert is_sound(maker, path)
        if not is_killed:
            return changes
        changes.append(said)


def main() -> None:
    """Print the changes for each maker, of a new folder and of one that is overwritten."""
    at = Path(sys.argv[1])
    print(json.dumps([[killed_everywhere(maker, at, full) for full in (False, True)] for maker in MAKERS]))


def branched_everywhere(at: Path) -> list[str]:
    """Make a run that goes on from another one again and again, killed one change later each time; see above."""
    tried = raysim.Experiment.model_validate(
        {"data": {"name": "digits", "clients": 4}, "model": {"name": "linear"}, "cohort": {"size": 2}, "rounds": 1}
    )
    raysim.run(tried, path=at / "origin", executor="local", progress=False)
    longer = tried.changed(["rounds=2"])
    changes: list[str] = []
    while True:
        path = at / str(len(changes)) / "run"
        with lock.locked(path):
            pass  # so an earlier process may have left it
        branching = partial(branch, at / "origin", path, longer, "fingerprint")
        said, is_killed = killed_at(len(changes), path.parent, branching)
        if beginning.is_unbegun(path):
            # None of the folder in which it is made.
            assert set(runs.find(at)) == {at / "origin", *(at / str(done) / "run" for done in range(len(changes)))}
            branching()
        assert round_table.read_rounds(path).num_rows == 1, said
        assert len(files.checkpoints(path)) == 1, said
        if not is_killed:
            return changes
        changes.append(said)


def test_a_run_that_goes_on_from_another_is_there_or_not(tmp_path: Path) -> None:
    code = f"from {__name__} import *; print(len(branched_everywhere(Path({str(tmp_path)!r}))))"
    done = command.python("-c", code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_a_folder_is_begun_or_not(tmp_path: Path) -> None:
    # In a process by itself: a fork of this one would inherit its threads' locks.
    done = command.python("-c", f"from {__name__} import main; main()", str(tmp_path))
    assert done.returncode == 0, done.stderr
    for new, overwritten in json.loads(done.stdout):
        assert any(change.startswith("os.rename") for change in new)
        assert any(change.startswith("os.rmdir") for change in overwritten)


def left_behind(path: Path) -> None:
    """What a process leaves that is killed before the record is there."""
    path.mkdir()
    (path / lock.FILE).touch()
    atomic.beside(path / files.RECORD).write_text("{")


def test_what_has_not_begun_is_begun_by_resume(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(rounds=1)
    for name in ("run", "trials", "sweep"):
        left_behind(tmp_path / name)
    raysim.run(exp, dataset=dataset, path=tmp_path / "run", resume=True, progress=False)
    twice = exp.changed(["trials.count=2"])
    raysim.run_trials(twice, dataset=dataset, path=tmp_path / "trials", resume=True, progress=False)
    raysim.run_sweep(exp, {"rounds": [1]}, dataset=dataset, path=tmp_path / "sweep", resume=True, progress=False)
    for name in ("run", "trials/trial-1", "sweep/rounds=1"):
        assert round_table.read_rounds(tmp_path / name).num_rows == 1
        assert not [file for file in (tmp_path / name).iterdir() if atomic.is_beside(file)]


def test_a_lock_that_the_disk_does_not_take_is_named(tmp_path: Path) -> None:
    """What was not written is not tried again when the file is closed, whose error would have no name."""
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        with pytest.raises(DiskError, match=r"\.lock could not be written: File too large"):
            lock.locked(tmp_path / "run").__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
