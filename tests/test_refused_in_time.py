"""A continuation that is refused leaves the folder as it was; one that changes nothing says what has no effect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.run_folder import files
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
Data = raysim.FederatedDataset

LARGE_STEPS = {"optimizer": {"name": "sgd", "lr": 5.0}, "batch_size": 4}


def content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def refused(call: Callable[[], object], folder: Path, why: str) -> None:
    before = content(folder)
    with pytest.raises(raysim.RunFolderError, match=why):
        call()
    assert content(folder) == before


@pytest.fixture
def by_loss(tmp_path: Path, dataset: Data, experiment: Make) -> tuple[raysim.Experiment, Path, int]:
    """A run of nine rounds that keeps the model with the best loss; and after which round the accuracy was best."""
    e = experiment(
        rounds=9, client=LARGE_STEPS, evaluation={"every": 1}, checkpoint={"best": "eval/test/loss", "every": 1}
    )
    rows = raysim.run(e, dataset=dataset, path=tmp_path / "run").rounds.to_pylist()
    accuracies = [row["eval/test/accuracy"] for row in rows]
    best = accuracies.index(max(accuracies)) + 1
    assert best not in files.best_models(tmp_path / "run")
    return e, tmp_path / "run", best


@pytest.mark.parametrize("rounds", [9, 12])
def test_a_best_model_that_was_not_kept_is_no_lost_file(
    by_loss: tuple[raysim.Experiment, Path, int], rounds: int, dataset: Data
) -> None:
    e, path, best = by_loss
    other = e.changed({"rounds": rounds, "checkpoint.best": "eval/test/accuracy"})
    why = (
        rf"does not have the best model by checkpoint.best = 'eval/test/accuracy', which is that after {best} rounds: "
        r"until now the run kept the best model by 'eval/test/loss'. To go on, leave checkpoint.best as it was;"
    )
    refused(lambda: raysim.run(other, dataset=dataset, path=path, resume=True), path, why)
    with raysim.Runs(other, dataset=dataset) as runs:
        refused(lambda: runs.start([(other, path)], resume=True), path, why)
    resumed = raysim.run(e.changed({"rounds": 12}), dataset=dataset, path=path, resume=True)
    assert resumed.rounds.num_rows == 12


def test_a_best_model_is_kept_from_the_first_evaluation_on_or_not_at_all(
    tmp_path: Path, dataset: Data, experiment: Make
) -> None:
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    later = experiment(rounds=6, checkpoint={"best": "eval/test/loss"})
    why = r"until now the run kept no best model. To go on, leave checkpoint.best out;"
    refused(lambda: raysim.run(later, dataset=dataset, path=tmp_path / "run", resume=True), tmp_path / "run", why)


def test_damage_is_found_before_anything_is_written(tmp_path: Path, dataset: Data, experiment: Make) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(), dataset=dataset, path=path)
    files.client_file(path, 1).write_bytes(b"damaged")
    longer = experiment(rounds=6, checkpoint={"keep": 7})
    refused(lambda: raysim.run(longer, dataset=dataset, path=path, resume=True), path, "is damaged|cannot be read")


def test_a_series_that_cannot_go_on_keeps_its_record(tmp_path: Path, dataset: Data, experiment: Make) -> None:
    whole, fewer = (experiment(rounds=rounds, trials=2) for rounds in (4, 2))
    how: dict[str, Any] = {"dataset": dataset, "path": tmp_path / "trials"}
    raysim.run_trials(whole, **how)
    refused(lambda: raysim.run_trials(fewer, resume=True, **how), tmp_path / "trials", "cannot go on to round 2 only")
    swept: dict[str, Any] = {"dataset": dataset, "path": tmp_path / "sweep"}
    raysim.run_sweep(experiment(rounds=4), {"seed": [0, 1]}, **swept)
    refused(
        lambda: raysim.run_sweep(experiment(rounds=2), {"seed": [0, 1, 2]}, resume=True, **swept),
        tmp_path / "sweep",
        "cannot go on to round 2 only",
    )


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 2)])
def test_a_sweep_with_another_number_of_trials_keeps_its_record(
    before: int, after: int, tmp_path: Path, dataset: Data, experiment: Make
) -> None:
    how: dict[str, Any] = {"dataset": dataset, "path": tmp_path / "sweep"}
    values = {"cohort.size": [3, 4]}
    raysim.run_sweep(experiment(rounds=1, trials=before), values, **how)
    refused(
        lambda: raysim.run_sweep(experiment(rounds=1, trials=after), values, resume=True, **how),
        tmp_path / "sweep",
        f"{tmp_path / 'sweep' / 'cohort.size=3'} holds",
    )
    assert len(raysim.run_sweep(experiment(rounds=1, trials=before), values, resume=True, **how).points) == 2


def test_what_changes_nothing_of_a_run_that_is_over_is_said(
    tmp_path: Path, dataset: Data, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(), dataset=dataset, path=path)
    before = content(path)
    with caplog.at_level(logging.WARNING, "raysim"):
        raysim.run(experiment(), dataset=dataset, path=path, resume=True)
    assert not caplog.messages
    raysim.run(experiment(name="other"), dataset=dataset, path=path, resume=True, profile=True)
    assert caplog.messages == [
        f"the run of {path} is over and stays as recorded, without effect of: name was 'test', and is 'other'; profile "
        f"has no rounds to show"
    ]
    assert content(path) == before


@pytest.mark.parametrize("every", [1, 2])
def test_rows_and_evaluations_of_a_continuation_are_those_of_an_undisturbed_run(
    every: int, tmp_path: Path, experiment: Make
) -> None:
    """The last row's evaluation, which no longer counts, and the clients of it are dropped once."""
    data = Data.from_clients(train=make_clients([5] * 8), test=make_clients([9] * 3, seed=1, prefix="t"))
    how: dict[str, Any] = {
        "cohort": {"size": 3},
        "evaluation": {"every": every},
        "checkpoint": {"best": "eval/test/loss"},
    }
    raysim.run(experiment(rounds=3, **how), dataset=data, path=tmp_path / "run")
    again = raysim.run(experiment(rounds=5, **how), dataset=data, path=tmp_path / "run", resume=True)
    whole = raysim.run(experiment(rounds=5, **how), dataset=data, path=tmp_path / "whole")
    for name in ("loss", "eval/test/loss"):
        assert again.rounds[name] == whole.rounds[name]
    assert again.clients == whole.clients
