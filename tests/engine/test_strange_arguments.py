"""What a script passes to the functions of raysim in the place of something else is named, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import raysim
from raysim.errors import ExperimentError, RaysimError, RunFolderError

Make = Callable[..., raysim.Experiment]

TAKE_EXPERIMENTS: dict[str, Callable[..., Any]] = {
    "run": raysim.run,
    "rounds": raysim.rounds,
    "run_trials": raysim.run_trials,
    "run_sweep": lambda experiment: raysim.run_sweep(experiment, {}),
    "launch": raysim.launch,
    "Runs": raysim.Runs,
}


@pytest.mark.parametrize("name", TAKE_EXPERIMENTS)
@pytest.mark.parametrize("given", [{"rounds": 3}, "digits.toml", None])
def test_what_is_no_experiment(name: str, given: Any) -> None:
    with pytest.raises(ExperimentError, match=r"experiment must be a raysim\.Experiment: raysim\.load"):
        TAKE_EXPERIMENTS[name](given)


def figure(outputs: Any, targets: Any) -> Any:
    return outputs.sum(1)


STRANGE: dict[str, tuple[dict[str, Any], type[RaysimError], str]] = {
    "a mapping as a dataset": ({"dataset": {"a": 1}}, ExperimentError, r"dataset must be a raysim\.FederatedDataset"),
    "a path as a dataset": ({"dataset": "data"}, ExperimentError, r"dataset must be a raysim\.FederatedDataset"),
    "a number as a path": ({"path": 3}, ExperimentError, "path must be a folder's path or URI, but got int"),
    "a path with a zero": ({"path": "a\0b"}, RunFolderError, "cannot be a run's folder: it has a zero character"),
    "a path that is no text": ({"path": "\udce4"}, RunFolderError, "UTF-8 cannot hold its name"),
    "a path that is too long": ({"path": "x" * 300}, RunFolderError, "cannot be a run's folder: File name too long"),
    "a path that nobody can make": ({"path": "/proc/x/y"}, RunFolderError, "/proc/x/y cannot be made"),
    "another executor": ({"executor": "dask"}, ExperimentError, "executor must be 'local' or 'ray', but got 'dask'"),
    "a list of metrics": ({"metrics": [figure]}, ExperimentError, "metrics= must be a mapping .* but got list"),
    "no metric": ({"metrics": {"mine": None}}, ExperimentError, "must map names to functions, but 'mine' is None"),
    "no transform": ({"transform": [None]}, ExperimentError, "transform= must be functions, but the list has None"),
    "a name as loggers": ({"loggers": "wandb"}, ExperimentError, "loggers= must be a list .* but got 'wandb'"),
    "loggers that are read once": ({"loggers": iter([print])}, ExperimentError, "loggers= must be a list"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_what_is_strange(name: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    given, kind, message = STRANGE[name]
    usual: dict[str, Any] = {"dataset": dataset, "model": lambda: nn.Linear(5, 3), "path": tmp_path / "run"}
    with pytest.raises(kind, match=message):
        raysim.run(experiment(), **{**usual, **given})
    assert not (tmp_path / "run").exists()


def test_a_path_below_a_file(tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="run cannot be made, or not be written to: Not a directory"):
        raysim.run(experiment(), dataset=dataset, path=tmp_path / "file" / "run")
