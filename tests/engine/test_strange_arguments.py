"""What a script passes to the functions of raysim in the place of something else is named, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import raysim
from raysim.errors import ExperimentError, RaysimError, RunFolderError
from raysim.server import ServerOptimizer

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
    with pytest.raises(ExperimentError, match=r"experiment must be a raysim\.Experiment, but got .*: raysim\.load"):
        TAKE_EXPERIMENTS[name](given)


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (raysim.run_trials, (3,), r'takes experiment by position .*changed\({"trials.count": 3}\)'),
        (raysim.run_sweep, ({}, "local"), "takes experiment, values by position and all else by name"),
        (raysim.Runs, ("local",), "takes experiment by position"),
        (raysim.resume, (9,), r"takes path by position and all else by name, but got more by position$"),
    ],
)
def test_more_by_position_than_there_is_place_for(function: Any, given: Any, said: str, experiment: Make) -> None:
    with pytest.raises(TypeError, match=said):
        function(experiment(), *given)


def figure(outputs: Any, targets: Any) -> Any:
    return outputs.sum(1)


STRANGE: dict[str, tuple[dict[str, Any], type[RaysimError], str]] = {
    "a mapping as a dataset": ({"dataset": {"a": 1}}, ExperimentError, r"dataset must be a raysim\.FederatedDataset"),
    "a path as a dataset": ({"dataset": "data"}, ExperimentError, r"dataset must be a raysim\.FederatedDataset"),
    "a number as a path": ({"path": 3}, ExperimentError, "path must be a folder's path or URI, but got int"),
    "no path": ({"path": ""}, ExperimentError, "path must be a folder's path or URI, but got an empty text"),
    "a path with a zero": ({"path": "a\0b"}, RunFolderError, "cannot be a run's folder: it has a zero character"),
    "a path that is not a text": ({"path": "\udce4"}, RunFolderError, "UTF-8 cannot hold its name"),
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


KEPT: dict[str, tuple[Callable[..., Any], dict[str, Any], type[RaysimError], str]] = {
    "no place": (raysim.export, {"out": None}, RunFolderError, r"The exported model .* must be a path .* got None\."),
    "bytes as a place": (raysim.export, {"out": b"out"}, RunFolderError, r"must be a path .* but got bytes\."),
    "a place with a zero": (raysim.export, {"out": "a\0b"}, RunFolderError, r"got 'a\\x00b', which has a zero char"),
    "a place that is no text": (raysim.export, {"out": "\ud800"}, RunFolderError, "which is not valid Unicode"),
    "no run": (raysim.export, {"path": None, "out": "out"}, ExperimentError, "path must be a folder's .* got None"),
    "a number as a split": (raysim.evaluate, {"split": 3}, ExperimentError, "split must be the name .* but got 3"),
    "numbers as splits": (raysim.evaluate, {"split": [3]}, ExperimentError, r"split must be the name .* got \[3\]"),
    "bytes as a split": (raysim.evaluate, {"split": b"test"}, ExperimentError, "split must be the name of a split"),
    "a path as data": (raysim.evaluate, {"data": "x"}, ExperimentError, r"data must be a raysim\.Fed.* but got str"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_strange_to_a_recorded_model(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    monkeypatch.chdir(tmp_path)
    function, given, kind, message = KEPT[name]
    raysim.run(experiment(rounds=1), dataset=dataset, path="run")
    with pytest.raises(kind, match=message):
        function(**{"path": "run", "dataset": dataset, **given})
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def nothing(*given: Any) -> Any:
    return {}


RECORDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "correction": (raysim.Correction(), {}),
    "client_optimizer": (raysim.ClientOptimizer(nothing, nothing), {"client": {"optimizer": {"name": "own"}}}),
    "transform": (raysim.Transform(nothing), {}),
    "sampler": (raysim.Sampler(nothing, nothing), {}),
    "server_optimizer": (ServerOptimizer(nothing, nothing), {}),
}

NO_MAKERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the record itself": (lambda record: record, "but got a {kind}"),
    "a function of other arguments": (lambda record: lambda x, y: x, "raised TypeError: .* argument: 'y'"),
    "a class of torch": (lambda record: torch.optim.Adam, r"raised TypeError \(.*\): .*"),
    "a function of what the record's functions take": (lambda record: lambda at: at.delta, "'delta'"),
}


@pytest.mark.parametrize("keyword", RECORDS)
@pytest.mark.parametrize("name", NO_MAKERS)
def test_what_makes_no_part_is_told_the_form(
    keyword: str, name: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    record, keys = RECORDS[keyword]
    given, but = NO_MAKERS[name]
    kind = type(record).__name__
    with pytest.raises(ExperimentError) as raised:
        raysim.rounds(experiment(**keys), dataset=dataset, **{keyword: given(record)})
    said = str(raised.value)
    assert re.match(rf"{keyword}= .*{but.format(kind=kind)}", said)
    assert len(said) < 350
    # What a sampler's function may ask for tells a cohort from a section.
    if (keyword, but) != ("sampler", "'delta'"):
        assert re.search(rf"such as lambda section: raysim\.(server\.)?{kind}\(\.\.\.\)", said)
