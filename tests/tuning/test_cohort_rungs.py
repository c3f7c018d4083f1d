"""Trials that are run with smaller cohorts first: which go on, what they cost, and how they are resumed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysim
import tuning
from tuning.ledger import Ledger
from tuning.section import section_of

Make = Callable[..., raysim.Experiment]

RATES = [1.0, 0.3, 0.01, 3.0, 0.1]
PRUNER = {"name": "halving", "cohorts": [1, 2], "factor": 2}


@pytest.fixture
def exp(tuned: Make) -> raysim.Experiment:
    """Five rates with cohorts of 1, 2 and then 4 clients, in a fixed order."""
    keys = {"space": {"client.optimizer.lr": {"grid": RATES}}, "sampler": {"name": "grid", "seed": 5}}
    return tuned(**keys, objective={"name": "loss"}, pruner=PRUNER, seeds=2, final=0, concurrent=1)


def quick(folder: Path) -> str:
    """A storage that is opened faster than a database."""
    return f"journal:{folder / 'journal'}"


def told(found: tuning.Study) -> list[dict[str, Any]]:
    # The lists of a table have 32 bits.
    inexact = {"seconds", "standard_error/clients"}
    return [{name: row[name] for name in row if name not in inexact} for row in found.trials.to_pylist()]


def loss(exp: raysim.Experiment, dataset: raysim.FederatedDataset, lr: float, size: int) -> float:
    """The mean over two seeds of runs by themselves."""
    losses: list[float] = []
    for seed in (0, 1):
        keys = {"seed": seed, "cohort.seed": seed, "cohort.size": size, "client.optimizer.lr": lr}
        alone = exp.changed({**keys, "evaluation.split": "validation", "tuning": None})
        *_, last = raysim.rounds(alone, dataset=dataset.hold_out(0.2, 0), executor="local")
        losses.append(last.metrics["eval/validation/loss"] or 0.0)
    return sum(losses) / 2


def test_the_best_with_a_small_cohort_go_on_to_a_larger_one(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    found = tuning.tune(exp, dataset=small, path=tmp_path, storage=quick(tmp_path))
    reached: dict[int, list[float]] = {1: [], 2: []}
    for row in found.trials.to_pylist():
        size, updates = 4, 0
        for rung in (1, 2, 4):
            value = loss(exp, small, row["client.optimizer.lr"], rung)
            updates += rung * 4 * 2
            if rung == 4:
                assert row["value"] == pytest.approx(value)
                break
            reached[rung].append(value)
            if sorted(reached[rung]).index(value) >= max(1, len(reached[rung]) // 2):
                size = rung
                break
        assert (row["cohort"], row["client_updates"]) == (size, updates)
        assert row["outcome"] == ("finished" if size == 4 else "pruned")
    assert {row["cohort"] for row in found.trials.to_pylist()} == {1, 2, 4}
    # Only runs with the whole cohort are among the trials, where `raysim best` looks.
    kept = [json.loads(path.read_text()) for path in tmp_path.glob("trials/*/seed-*/experiment.json")]
    assert {run["experiment"]["cohort"]["size"] for run in kept} == {4}


def test_a_table_with_these_cohorts_stands_in_for_training(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    space = {"client.optimizer.lr": {"grid": RATES}, "cohort.size": {"grid": [1, 2, 4]}}
    grid = exp.changed({"tuning.space": space, "tuning.pruner": {"name": "none"}, "tuning.concurrent": "auto"})
    table = tuning.make_table(
        grid, tmp_path / "table.parquet", folder=tmp_path / "grid", dataset=small, storage=f"{quick(tmp_path)}-grid"
    )
    trained = tuning.tune(exp, dataset=small, path=tmp_path / "trained", storage=quick(tmp_path))
    read = tuning.tune_on(exp, table, path=tmp_path / "read")
    assert told(read) == told(trained)
    assert read.table is not None
    assert dict(read.table.values)["cohort.size"] == 4
    for key, said in (("tuning.pruner.cohorts=[1, 3]", "also has 3"), ("cohort.size=3", "cohort.size is 4 there")):
        with pytest.raises(raysim.ExperimentError, match=said):
            tuning.tune_on(exp.changed([key]), table, path=tmp_path / "other")


def test_a_study_that_is_interrupted_has_the_same_trials(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuning.tune(exp, dataset=small, path=tmp_path / "whole", storage=f"{quick(tmp_path)}-whole")
    ends, end = itertools.count(), Ledger.end

    def sometimes(*given: Any) -> None:
        # The trial has run its cohorts, and its steps are stored; its end is stored at the second attempt.
        if next(ends) % 2 == 0:
            raise KeyboardInterrupt
        end(*given)

    monkeypatch.setattr(Ledger, "end", sometimes)
    for _ in RATES:
        with pytest.raises(KeyboardInterrupt):
            tuning.tune(exp, dataset=small, path=tmp_path / "cut", storage=quick(tmp_path))
    assert told(tuning.tune(exp, dataset=small, path=tmp_path / "cut", storage=quick(tmp_path))) == told(whole)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["tuning.pruner.cohorts=[2, 1]"], "must grow"),
        (["tuning.pruner.cohorts=[2, 4]"], "smaller than cohort.size = 4"),
        (["tuning.pruner.min_rounds=2"], "give one of them"),
        (["tuning.space={cohort.size={grid=[2, 4]}}"], "a key of tuning.space"),
        (["cohort={sampler={name='bernoulli', probability=0.5}}"], "absent"),
    ],
)
def test_cohorts_that_are_not_those_of_the_trials_are_refused(
    changes: list[str], said: str, exp: raysim.Experiment
) -> None:
    with pytest.raises(raysim.ExperimentError, match=f"tuning.pruner.*{said}"):
        section_of(exp.changed(changes))
