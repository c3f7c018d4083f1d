"""A run that is killed before any one change of its folder goes on to what an undisturbed run has.

The order of a round's writes: client states as they are trained, evaluated clients, rows, the best model, why the run
stops, a checkpoint; then what no checkpoint names is deleted. A run that goes on first makes its folder that of its
newest checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import raysim
from raysim.report import curve, runs
from raysim.run_folder import cost_columns, experiment_record, files, writer
from raysim.storage import lock
from tests.support import command
from tests.support.kills import KILLED, kill_before
from tests.support.small_data import make_clients

EXPERIMENT: dict[str, Any] = {
    "name": "killed",
    "rounds": 3,
    "model": {"name": "linear"},
    "client": {"optimizer": {"name": "sgd", "lr": 0.1}, "correction": {"name": "scaffold"}},
    "cohort": {"size": 2},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2, "keep": 1, "best": "eval/test/loss"},
    "engine": {"workers": 0},
}

ROUNDS, MORE = 3, 4

TOLD = ("its run begins again, with the same numbers", "stays stopped: it ended after round")
"""What is true of such runs, and may be said of them."""


LEFT = (lock.FILE, ".experiment.json.", "checkpoints/", "client_state/")
"""Beginnings of names of what may stay in a folder."""

Way = Callable[[Path], None]


def content(path: Path) -> tuple[Any, ...]:
    """The folder's result: figures, parameters, and the names of its files."""
    found = raysim.read(path)
    assert isinstance(found, raysim.Result)
    figures = [name for name in found.rounds.column_names if not cost_columns.tells_cost(name)]
    named = sorted(file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file())
    return (
        found.rounds.select(figures).to_pylist(),
        found.clients.to_pylist(),
        {name: value.tolist() for name, value in found.params.items()},
        # A run that has ended is not changed: what it had not deleted yet is deleted when it goes on to more rounds.
        [name for name in named if not name.startswith(LEFT)],
    )


def stopping(path: Path) -> None:
    """Run an experiment that stops before its last round, or go on with it."""
    _run(path, {"rounds": MORE, "stop": {"budget": {"rounds": ROUNDS}}})


def ended(path: Path) -> None:
    """Run an experiment to its end, or go on with it."""
    _run(path, {})


def continued(path: Path) -> None:
    """Go on with such a run to more rounds."""
    raysim.resume(path, rounds=MORE, progress=False, dataset=small())


def _run(path: Path, keys: Mapping[str, Any]) -> None:
    told = raysim.Experiment.model_validate({**EXPERIMENT, **keys})
    raysim.run(told, path=path, resume=path.exists(), progress=False, dataset=small())


@cache
def small() -> raysim.FederatedDataset:
    """Four clients, and two of the test split."""
    train, test = make_clients([8, 9, 10, 11]), make_clients([20, 20], seed=1, prefix="t")
    return raysim.FederatedDataset.from_clients(train=train, test=test)


def words(change: str, path: Path, way: Way) -> list[str]:
    """Carry on with a killed run; return warnings, and notes of a report before, that are not true of one under way."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("raysim")
    log.addHandler(handler)
    try:
        if (path / files.RECORD).exists():
            said += [note for note in runs.read(path).notes if not ("still going" in note or "has stopped" in note)]
        way(path)
    finally:
        log.removeHandler(handler)
    return [f"{change}: {word}" for word in said if not any(told in word for told in TOLD)]


def killed_everywhere(way: Way, before: Path | None, at: Path) -> list[str]:
    """Kill the run one change later each time; return what differs from an undisturbed one when it has gone on.

    before: the folder that it goes on from; None: it begins.
    """

    def folder(name: str) -> Path:
        return at / name if before is None else Path(shutil.copytree(before, at / name))

    way(whole := folder("whole"))
    expected, flaws = content(whole), []
    for number in range(1000):
        path = folder(str(number))
        reader, pipe = os.pipe()
        if not (child := os.fork()):
            kill_before(number, str(path), pipe)
            way(path)
            os._exit(0)
        os.close(pipe)
        with open(reader) as told:
            change = f"before change {number}, {told.read().replace(str(path), '')}"
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, KILLED), code
        if before is not None and experiment_record.stored_experiment(path).rounds == ROUNDS:
            # It need not be asked for more rounds again.
            flaws += words(change, path, ended)
            flaws += _differs(change, content(path), content(before))
        flaws += words(change, path, way)
        flaws += _differs(change, content(path), expected)
        if code == 0:
            return flaws
    raise AssertionError


def _differs(change: str, found: tuple[Any, ...], expected: tuple[Any, ...]) -> list[str]:
    every = zip(found, expected, ("rounds", "clients", "params", "files"), strict=True)
    return [f"{change}: {what} are {own}, not {other}" for own, other, what in every if own != other]


def main() -> None:
    """Print the flaws, as JSON."""
    at = Path(sys.argv[1])
    # Rows are written after each round, as of rounds that take seconds.
    writer.FLUSH_S = -1.0
    curve.of_run = lambda path, experiment: None
    found = killed_everywhere(stopping, None, at / "stopping")
    ended(at / "ended")
    print(json.dumps(found + killed_everywhere(continued, at / "ended", at / "continued")))


def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_end(tmp_path: Path) -> None:
    # In a process by itself: a fork of this one would inherit its threads' locks.
    done = command.python("-c", f"from {__name__} import main; main()", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
