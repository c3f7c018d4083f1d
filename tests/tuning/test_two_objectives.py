"""Studies of accuracy and cost: the front, from the file's keys to the table, the picture and the storage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

import raysim
import tuning
from tuning.ledger import Ledger
from tuning.pictures import pareto
from tuning.section import section_of

Make = Callable[..., raysim.Experiment]

SPACE = {"cohort.size": {"grid": [1, 2, 4, 6]}, "client.optimizer.lr": {"grid": [0.01, 0.3, 1.0]}}


@pytest.fixture
def exp(tuned: Make) -> raysim.Experiment:
    """Cohorts of several sizes, which cost more bytes the larger they are."""
    keys = {"space": SPACE, "sampler": {"name": "tpe", "startup": 4}, "objective": {"name": "loss"}}
    return tuned(**keys, cost="bytes", trials=8, final=0, concurrent=1)


def beaten(row: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
    points = [(other["value"], other["bytes"]) for other in rows]
    own = (row["value"], row["bytes"])
    return any(value <= own[0] and used <= own[1] and (value, used) != own for value, used in points)


def told(found: tuning.Study) -> list[dict[str, Any]]:
    inexact = {"seconds", "standard_error/clients"}
    return [{name: row[name] for name in row if name not in inexact} for row in found.trials.to_pylist()]


def test_the_front_is_what_no_trial_beats_in_both(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    found = tuning.tune(exp, dataset=small, path=tmp_path / "study")
    rows = found.trials.to_pylist()
    front = [row["trial"] for row in rows if not beaten(row, rows)]
    assert 1 < len(front) < len(rows)
    assert sorted(found.front) == front
    assert found.best.value == min(row["value"] for row in rows)
    stored = optuna.load_study(study_name="test", storage=f"sqlite:///{tmp_path / 'study' / 'study.db'}")
    assert {trial.number for trial in stored.best_trials} == set(front)
    said = [text for label, text in tuning.lines(found) if label == "front"]
    bytes_of = sorted(row["bytes"] for row in rows if row["trial"] in front)
    assert [text.split(" by ")[1].split(" bytes")[0] for text in said] == [f"{used:,.0f}" for used in bytes_of]
    drawn = pareto.figure(found)
    assert drawn is not None
    assert drawn.title == "test: validation loss against bytes"
    assert drawn.data["bytes"].to_pylist() == [row["bytes"] for row in rows]
    stored._storage.remove_session()
    stored._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def test_it_goes_on_with_the_same_trials_and_a_table_gives_them_too(
    exp: raysim.Experiment, small: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(name: str) -> tuning.Study:
        return tuning.tune(exp, dataset=small, path=tmp_path / name, storage=f"journal:{tmp_path / name}.log")

    whole = tune("whole")
    count, end = itertools.count(), Ledger.end

    def sometimes(*given: Any) -> None:
        if next(count) in (2, 5):
            raise KeyboardInterrupt
        end(*given)

    monkeypatch.setattr(Ledger, "end", sometimes)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tune("cut")
    assert told(tune("cut")) == told(whole)
    grid = exp.changed(["evaluation.every=1"])
    storage = f"journal:{tmp_path / 'grid.log'}"
    table = tuning.make_table(
        grid, tmp_path / "table.parquet", folder=tmp_path / "grid", dataset=small, storage=storage, concurrent=64
    )
    read = tuning.tune_on(exp, table, path=tmp_path / "read")
    assert told(read) == told(whole)
    assert read.front == whole.front


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("tuning.cost='seconds'", "tuning.cost"),
        ("tuning.cost='simulated_s'", r"tuning.cost counts simulated seconds, but without \[systems\]"),
        ("tuning.pruner={name='median'}", "two objectives"),
        ("tuning.sampler={name='cmaes'}", "cmaes"),
    ],
)
def test_what_has_no_second_objective(change: str, said: str, exp: raysim.Experiment) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        section_of(exp.changed([change]))


def test_rounds_that_are_tried_are_not_those_that_were_used_up(
    tuned: Make, small: raysim.FederatedDataset, tmp_path: Path
) -> None:
    exp = tuned(space={"rounds": {"grid": [2, 4]}}, seeds=2, cost="rounds", final=0, objective={"name": "loss"})
    found = tuning.tune(exp, dataset=small, path=tmp_path / "study")
    assert {(row["rounds"], row["spent/rounds"]) for row in found.trials.to_pylist()} == {(2, 4), (4, 8)}
    assert [line.split(":")[0].split() for line in str(found).splitlines() if line.startswith("front")] == [
        ["front", "rounds", "=", "2"],
        ["front", "rounds", "=", "4"],
    ]
    drawn = pareto.figure(found)
    assert drawn is not None
    assert sorted(drawn.data["rounds"].to_pylist()) == [4, 8]
