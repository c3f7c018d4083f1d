"""What a study looks for, computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

import raysim
from tuning.objective import Objective, divergence, reports

ROWS: list[dict[str, Any]] = [
    {"round": 0, "loss": 4.0, "clients": 5, "rejected": 0},
    {
        "round": 1,
        "loss": 3.0,
        "clients": 5,
        "rejected": 0,
        "eval/validation/accuracy": 0.5,
        "eval/validation/loss": 2.0,
    },
    {"round": 2, "loss": 2.0, "clients": 5, "rejected": 0},
    {
        "round": 3,
        "loss": 1.0,
        "clients": 5,
        "rejected": 0,
        "eval/validation/accuracy": 0.7,
        "eval/validation/loss": 1.0,
    },
]


def objective(**keys: Any) -> Objective:
    return Objective.checked(keys)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ({}, 0.7),
        ({"last": 3}, (0.5 + 0.7) / 2),
        ({"window": [0, 2]}, 0.5),
        ({"name": "loss"}, 1.0),
        ({"name": "loss", "last": 4}, (2.0 + 1.0) / 2),
        ({"name": "train_loss"}, 1.0),
        ({"name": "train_loss", "window": [1, 3]}, (3.0 + 2.0 + 1.0) / 3),
    ],
)
def test_the_mean_over_the_rounds_that_count(keys: dict[str, Any], value: float) -> None:
    assert objective(**keys).value(ROWS, total=4) == pytest.approx(value)


def test_where_no_round_that_counts_has_the_figure_there_is_no_value() -> None:
    assert objective(window=[2, 2]).value(ROWS, total=4) is None
    assert objective(name="train_loss").value([*ROWS[:3], {"round": 3, "loss": None}], total=4) is None


def test_a_percentile_is_that_of_the_validation_clients() -> None:
    tenth = objective(name="percentile", percentile=10)
    assert tenth.column == "eval/validation/p10"
    assert tenth.value([{"round": 0, "eval/validation/p10": 0.25}], total=1) == 0.25


def test_accuracies_are_maximised_and_losses_are_not() -> None:
    worst = {name: objective(name=name).worst for name in ("accuracy", "loss", "train_loss")}
    assert worst == {"accuracy": 0.0, "loss": math.inf, "train_loss": math.inf}
    assert objective(name="percentile", percentile=5).is_maximised


def test_a_metric_is_optimised_as_it_is_meant() -> None:
    large, small = objective(name="metric", metric="f1"), objective(name="metric", metric="calls", maximise=False)
    assert (large.column, large.is_maximised, large.worst) == ("eval/validation/f1", True, -math.inf)
    assert (small.column, small.is_maximised, small.worst) == ("eval/validation/calls", False, math.inf)
    undefined = {"round": 1, "eval/validation/f1": math.nan}
    assert large.value([{"round": 0, "eval/validation/f1": 0.25}, undefined], total=2) is None
    assert objective(name="metric", metric="f1", last=2).value(
        [{"round": 0, "eval/validation/f1": 0.25}, undefined], total=2
    ) == 0.25  # fmt: skip
    for wrong in ({"name": "metric"}, {"metric": "f1"}, {"maximise": False}):
        with pytest.raises(raysim.ExperimentError, match="metric"):
            objective(**wrong)


def test_a_pruner_sees_the_mean_of_rounds_that_every_seed_has_behind_it() -> None:
    other = [{**row, "eval/validation/accuracy": 0.9} if row["round"] == 1 else row for row in ROWS[:3]]
    assert reports(objective(), [ROWS, other]) == {2: pytest.approx(0.7)}
    assert reports(objective(), [ROWS, []]) == {}
    assert reports(objective(name="train_loss"), [ROWS]) == {2: 3.0, 4: 1.0}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"loss": math.nan}, "training loss was nan in round 7"),
        ({"loss": 1.0, "eval/validation/loss": math.inf}, "validation loss was inf in round 7"),
        ({"loss": None, "clients": 0, "rejected": 5}, "every update was rejected in round 7"),
        ({"loss": 1.0, "clients": 1, "rejected": 4}, None),
        ({"loss": None, "clients": 0, "rejected": 0}, None),
    ],
)
def test_what_divergence_is(row: dict[str, Any], said: str | None) -> None:
    found = divergence([*ROWS, {"round": 7, **row}])
    assert found is None if said is None else found is not None and said in found


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "percentile", "percentile": 101}, "percentile must be less than or equal to 100, but got 101"),
        ({"name": "percentile", "percentile": -1}, "percentile must be greater than or equal to 0, but got -1"),
        ({"name": "percentile"}, "percentile is the number that name = 'percentile' needs"),
        ({"percentile": 5}, "no other takes"),
        ({"last": 2, "window": [0, 1]}, "give one"),
        ({"window": [3, 1]}, "first <= last"),
        ({"name": "f1"}, "name must be"),
        ({"last": 0}, "last must be"),
    ],
)
def test_what_is_no_objective(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        objective(**keys)
