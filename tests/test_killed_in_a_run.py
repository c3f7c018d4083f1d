"""A run that is killed before any one change of its folder goes on to what an undisturbed run has.

The order of a round's writes: client states as they are trained, evaluated clients, rows, the best model, why the run
stops, a checkpoint; then what no checkpoint names is deleted. A run that goes on first makes its folder that of its
newest checkpoint.
"""

from __future__ import annotations

import json
import logging
import math
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
from tests.support.kills import left_before_each
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

CHANGED = ("/checkpoints/", "rounds.parquet", "/clients/", "/client_state/")
"""What a run changes in its folder, at least."""

Way = Callable[[Path], raysim.Result]


def content(found: raysim.Result) -> tuple[Any, ...]:
    """The result of a folder: figures, parameters, and the names of its files."""
    figures = [name for name in found.rounds.column_names if not cost_columns.tells_cost(name)]
    named = sorted(file.relative_to(found.path).as_posix() for file in found.path.rglob("*") if file.is_file())
    return (
        found.rounds.select(figures).to_pylist(),
        found.clients.to_pylist(),
        {name: value.tolist() for name, value in found.params.items()},
        # A run that has ended is not changed: what it had not deleted yet is deleted when it goes on to more rounds.
        [name for name in named if not name.startswith(LEFT)],
    )


def stopping(path: Path) -> raysim.Result:
    """Run an experiment that stops before its last round, or go on with it."""
    return _run(path, {"rounds": MORE, "stop": {"budget": {"rounds": ROUNDS}}})


def ended(path: Path) -> raysim.Result:
    """Run an experiment to its end, or go on with it."""
    return _run(path, {})


def continued(path: Path) -> raysim.Result:
    """Go on with such a run to more rounds."""
    return raysim.resume(path, rounds=MORE, progress=False, dataset=small())


def _run(path: Path, keys: Mapping[str, Any]) -> raysim.Result:
    told = raysim.Experiment.model_validate({**EXPERIMENT, **keys})
    return raysim.run(told, path=path, resume=path.exists(), progress=False, dataset=small())


@cache
def small() -> raysim.FederatedDataset:
    """Four clients, and two of the test split."""
    train, test = make_clients([8, 9, 10, 11]), make_clients([20, 20], seed=1, prefix="t")
    return raysim.FederatedDataset.from_clients(train=train, test=test)


def flaws_of(change: str, path: Path, way: Way, expected: tuple[Any, ...]) -> list[str]:
    """Carry on with a killed run; return what differs from an undisturbed one, and what is said that is not true."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("raysim")
    log.addHandler(handler)
    try:
        if (path / files.RECORD).exists():
            said += [note for note in runs.read(path).notes if not ("still going" in note or "has stopped" in note)]
        found = content(way(path))
    finally:
        log.removeHandler(handler)
    every = zip(found, expected, ("rounds", "clients", "params", "files"), strict=True)
    return [
        *(f"{change}: {word}" for word in said if not any(told in word for told in TOLD)),
        *(f"{change}: {what} are {own}, not {other}" for own, other, what in every if own != other),
    ]


def flaws_of_all(way: Way, before: Path | None, at: Path) -> list[str]:
    """Kill the run before each of its changes; return what is wrong when it has gone on.

    before: the folder that it goes on from; None: it begins.
    """
    expected = content(way(at / "whole" if before is None else Path(shutil.copytree(before, at / "whole"))))
    path = at / "killed"
    if before is not None:
        as_before = content(ended(before))
        shutil.copytree(before, path)
    found = left_before_each(path, at, lambda: way(path))
    flaws = [f"no change of {part} was seen" for part in CHANGED if not any(part in change for change, _ in found)]
    for change, left in found:
        change = f"before {change.replace(str(path), '')}"
        if before is not None and experiment_record.stored_experiment(left).rounds == ROUNDS:
            # It need not be asked for more rounds again.
            flaws += flaws_of(change, left, ended, as_before)
        flaws += flaws_of(change, left, way, expected)
    return flaws


def main() -> None:
    """Print the flaws, as JSON."""
    at = Path(sys.argv[1])
    curve.of_run = lambda path, experiment: None
    # A killed process leaves what it has written; to wait for the disk takes most of the time.
    os.fsync = lambda fd: None
    # Rows are written after each round, as of rounds that take seconds, and then with checkpoints only.
    writer.FLUSH_S = -1.0
    found = flaws_of_all(stopping, None, at / "stopping")
    writer.FLUSH_S = math.inf
    ended(at / "ended")
    print(json.dumps(found + flaws_of_all(continued, at / "ended", at / "continued")))


def test_a_run_that_is_killed_anywhere_goes_on_to_the_same_end(tmp_path: Path) -> None:
    # In a process by itself: what looks on at its changes stays.
    done = command.python("-c", f"from {__name__} import main; main()", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
