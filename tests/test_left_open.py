"""A script may end while it has a run open: the run is left as `close` leaves it."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import raysim
from raysim.testing import federation
from tests.support import command

left: object = None
"""What a process has at its end, in a module: variables of functions are gone earlier."""


def leave() -> None:
    """Go two rounds, of a run with a folder or without one."""
    global left
    experiment = federation.experiment({"rounds": 4, "client.correction.name": "scaffold"})
    path = sys.argv[1] or None
    rounds = raysim.rounds(experiment, dataset=federation.dataset(), model=federation.plain, path=path)
    for _ in range(2):
        next(rounds)
    left = rounds


def leave_several() -> None:
    """End with runs on workers of Ray."""
    global left
    experiment = federation.experiment({"rounds": 4}, workers=1, cpus_per_worker=0.5)
    runs = raysim.Runs(experiment, dataset=federation.dataset(), model=federation.plain)
    runs.start([(experiment, sys.argv[1])])
    next(runs.reports())
    left = runs


@pytest.mark.parametrize("has_folder", [True, False])
def test_an_iterator_that_a_script_has_at_its_end_is_closed(has_folder: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = command.python("-c", f"from {__name__} import leave; leave()", str(run) if has_folder else "")
    assert (done.returncode, done.stderr) == (0, "")
    if has_folder:
        assert pq.read_table(run / "rounds.parquet").num_rows == 2
        assert (run / "checkpoints" / "round-000002.safetensors").is_file()


@pytest.mark.ray
def test_runs_that_a_script_has_at_its_end_are_closed(tmp_path: Path) -> None:
    done = command.python("-c", f"from {__name__} import leave_several; leave_several()", str(tmp_path / "run"))
    assert (done.returncode, done.stderr) == (0, "")
