"""A process that is forked while a run is open leaves the run to its parent, and the parent's locks too."""

from __future__ import annotations

import atexit
import copy
import json
import os
import pickle
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.engine.on_ray.cluster import forked
from raysim.storage import lock
from raysim.testing import federation
from tests.support import command


def begun(path: Path | None) -> Any:
    """An iterator of six rounds whose clients keep states, after two of them."""
    experiment = federation.experiment({"rounds": 6, "checkpoint.every": 100, "client.correction.name": "scaffold"})
    steps = raysim.rounds(experiment, dataset=federation.dataset(), model=federation.plain, path=path, executor="local")
    next(steps), next(steps)
    return steps


def in_child(act: Callable[[], object]) -> str:
    """Act in a forked process, and return its error; empty without one."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        said = ""
        try:
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def goes_on(path: Path | None, act: Callable[[Any], object]) -> list[object]:
    """Act with an open iterator in a child; return its error, the parent's last round, and its loss."""
    steps = begun(path)
    said = in_child(lambda: act(steps))
    last = list(steps)[-1]
    return [said, last.index, last.metrics["loss"]]


def ended_late(path: Path) -> list[object]:
    """Let a child end its iterator after the parent has ended; return the rows before and after."""
    steps = begun(path)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.read(reader, 1)
        steps.close()
        del steps
        os._exit(0)
    list(steps)
    before = raysim.read(path).rounds.num_rows
    os.write(writer, b"x")
    os.waitpid(child, 0)
    return [before, raysim.read(path).rounds.num_rows]


def outlived(path: Path) -> str:
    """Resume a run while a child lives that was forked during it."""
    lock.PATIENCE_S = 0.0
    steps = begun(path)
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    steps.close()
    try:
        with lock.locked(path):
            return "free"
    except raysim.RunFolderError as error:
        return str(error)
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def left_a_logger(path: Path) -> list[object]:
    """Leave a logger's call in a child by an exception; return the child's error, and the parent's rows."""
    script, (reader, writer) = os.getpid(), os.pipe()

    def log(row: object) -> None:
        if os.getpid() == script and not os.fork():
            sys.exit()

    experiment = federation.experiment({"rounds": 1})
    try:
        run = raysim.run(
            experiment, dataset=federation.dataset(), model=federation.plain, path=path, loggers=[log], progress=False
        )
    except BaseException as error:
        os.write(writer, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.wait()
    return [os.read(reader, 1000).decode(), run.rounds.num_rows]


def several(at: Path) -> list[object]:
    """Use several runs in children; return the children's errors, and the rows of both runs."""
    experiment = federation.experiment({"rounds": 3, "evaluation.every": 1})
    named = [(experiment, at / str(number)) for number in range(2)]
    with raysim.Runs(experiment, dataset=federation.dataset(), model=federation.plain, executor="local") as runs:
        first, _ = runs.start(named)
        reports = runs.reports()
        next(reports)
        acts: list[Callable[[], object]] = [
            lambda: next(reports),
            lambda: next(runs.reports()),
            lambda: runs.start([(experiment, at / "other")]),
            lambda: runs.branch(experiment, at / "other", origin=at / "0"),
            lambda: runs.stop(first),
            lambda: runs.expect(9),
            lambda: runs.check(experiment),
            lambda: runs.workers,
            lambda: runs.close(),
        ]
        said = [in_child(act) for act in acts]
        list(reports)
    return [said, [raysim.read(path).rounds.num_rows for _, path in named], (at / "other").exists()]


def left_on_ray() -> None:
    """Leave a logger's call on Ray in children; print how these have ended, and the parent's rows."""
    script, children = os.getpid(), list[int]()
    leave: dict[int, Callable[[], object]] = {0: lambda: sys.exit(3), 1: atexit._run_exitfuncs, 2: lambda: None}

    def log(row: Any) -> None:
        if os.getpid() == script and (act := leave.get(row["round"])):
            children.append(child := os.fork())
            if not child:
                act()

    experiment = federation.experiment({"rounds": 4, "engine.workers": 1})
    path = Path(sys.argv[1])
    run = raysim.run(
        experiment, dataset=federation.dataset(), model=federation.plain, path=path, loggers=[log], progress=False
    )
    print(json.dumps([[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], run.rounds.num_rows]))


def main() -> None:
    """Print what came of each case."""
    at = Path(sys.argv[1])
    acts: dict[str, Callable[[Any], object]] = {
        "goes on": next,
        "throws": lambda steps: steps.throw(ValueError()),
        "closes": lambda steps: steps.close(),
        "exits": lambda steps: atexit._run_exitfuncs(),
    }
    whole = list(begun(None))[-1].metrics["loss"]
    found = {name: [goes_on(at / name, act), goes_on(None, act)] for name, act in acts.items()}
    late, long = ended_late(at / "late"), outlived(at / "outlived")
    print(json.dumps([whole, found, late, long, left_a_logger(at / "run"), several(at / "several")]))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    # In a process by itself: a fork of this one would inherit its threads' locks.
    done = command.python("-c", f"from {__name__} import main; main()", str(tmp_path_factory.mktemp("forked")))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_iterator_has_no_copy(way: Callable[[object], object]) -> None:
    """Two would step through one run."""
    with closing(begun(None)) as rounds:
        with pytest.raises(TypeError, match=r"raysim\.rounds is under way, and cannot be copied or pickled"):
            way(rounds)
        assert next(rounds).index == 2


@pytest.mark.parametrize("name", ["goes on", "throws", "closes", "exits"])
def test_a_forked_process_cannot_go_on_with_an_iterator(found: Any, name: str) -> None:
    whole, cases, *_ = found
    for said, last, loss in cases[name]:
        assert (last, loss) == (5, whole)
        if name in ("goes on", "throws"):
            assert said.startswith("ResourceError: raysim.rounds belongs to the process that made it")
        else:
            assert said == ""


def test_a_forked_process_that_ends_late_takes_no_rows_away(found: Any) -> None:
    assert found[2] == [6, 6]


def test_a_forked_process_does_not_write_to_a_run_that_it_leaves(found: Any) -> None:
    said, rows = found[4]
    assert "run is written by the process from which this one was forked" in said
    assert rows == 1


def test_a_forked_process_does_not_hold_a_lock_on(found: Any) -> None:
    assert found[3] == "free"


def test_a_forked_process_cannot_go_on_with_several_runs(found: Any) -> None:
    said, rows, has_begun_other = found[5]
    *refused, closed = said
    assert all(each.startswith("ResourceError: raysim.Runs belongs to the process that made it") for each in refused)
    assert (closed, rows, has_begun_other) == ("", [3, 3], False)


@pytest.mark.ray
def test_a_forked_process_leaves_ray_to_its_parent(tmp_path: Path) -> None:
    done = command.python("-c", f"from {__name__} import left_on_ray; left_on_ray()", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[3, 1, 1], 4]
    assert done.stderr.count("it cannot use Ray: end it by os._exit") == 2


def test_a_process_forked_after_a_run_on_ray_begins_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's library waits for ever there."""

    def run(**where: Any) -> None:
        experiment = federation.experiment({"rounds": 1, **where})
        parts: Any = {"dataset": federation.dataset(), "model": federation.plain}
        list(raysim.rounds(experiment, executor=None if "engine.workers" in where else "ray", **parts))

    monkeypatch.setattr(forked, "_has_used", True)
    assert "was forked from one that had used Ray" in in_child(run)
    assert in_child(lambda: run(**{"engine.workers": "auto"})) == ""
    monkeypatch.setattr(forked, "_has_used", False)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    assert in_child(lambda: run(**{"engine.workers": "auto"})) == ""
    assert "was forked from one that had used Ray" in in_child(run)
