"""What a study looks for, computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

import raysim
from tuning.mean import mean
from tuning.objective import Objective, divergence, reports
from tuning.trial_rows import TrialRows

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
    assert reports(objective(), [ROWS, other], total=4) == {2: pytest.approx(0.7)}
    assert reports(objective(), [ROWS, []], total=4) == {}
    assert reports(objective(name="train_loss"), [ROWS], total=4) == {2: 3.0, 4: 1.0}


# Rounds to a target: 0.5 after 2 rounds, 0.7 after 4.


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        ({"target": 0.6}, 3.0),
        ({"target": 0.7}, 4.0),
        ({"target": 0.4}, 2.0),
        # Of 10 rounds, and a tenth short.
        ({"target": 0.8}, 10 * 1.1),
        ({"target": 1.5, "metric": "loss", "maximise": False}, 3.0),
        ({"target": 0.5, "metric": "loss", "maximise": False}, 10 * 1.5),
    ],
)
def test_rounds_to_a_target_are_where_the_best_so_far_crosses_it(keys: dict[str, Any], value: float) -> None:
    aim = objective(name="rounds_to_target", **keys)
    assert aim.value(ROWS, total=10) == pytest.approx(value)
    assert aim.missed(value, total=10) == (value > 10)
    # A later, worse evaluation changes nothing.
    worse = {"round": 5, "eval/validation/accuracy": 0.1, "eval/validation/loss": 9.0}
    assert aim.value([*ROWS, worse], total=10) == pytest.approx(value)


def test_a_trial_that_misses_the_target_is_worse_than_all_that_reach_it_and_the_nearer_the_better() -> None:
    aim = objective(name="rounds_to_target", target=0.75)

    def ends_at(*accuracies: float) -> float:
        runs = [[{"round": 9, "eval/validation/accuracy": accuracy}] for accuracy in accuracies]
        return aim.combined([value for rows in runs if (value := aim.value(rows, total=10)) is not None], total=10)

    slowest = ends_at(0.75, 0.75)
    assert slowest == 10
    missed = [ends_at(0.9, 0.74), ends_at(0.74, 0.74), ends_at(0.5, 0.7), ends_at(0.1, 0.2)]
    assert [slowest, *missed] == sorted([slowest, *missed])
    assert len({slowest, *missed}) == 5
    assert (aim.is_maximised, aim.worst) == (False, math.inf)


def test_a_pruner_sees_what_a_trial_would_be_worth_if_it_ended() -> None:
    aim = objective(name="rounds_to_target", target=0.6)
    assert reports(aim, [ROWS], total=10) == {2: pytest.approx(10 * 1.1), 4: pytest.approx(3.0)}
    # The other seed is a tenth short after 4 rounds too.
    other = [{**row, "eval/validation/accuracy": 0.5} if row["round"] == 3 else row for row in ROWS]
    assert reports(aim, [ROWS, other], total=10)[4] == pytest.approx(10 * 1.05)


def test_a_target_is_named_for_people() -> None:
    assert objective(name="rounds_to_target", target=0.97).label == "rounds to 97 % validation accuracy"
    assert objective(name="rounds_to_target", target=0.99996).label == "rounds to 99.996 % validation accuracy"
    of_loss = objective(name="rounds_to_target", target=0.5, metric="f1", maximise=False)
    assert of_loss.label == "rounds to 0.5 validation f1"
    aim = objective(name="rounds_to_target", target=0.97).aim
    assert aim is not None
    assert aim.best(ROWS) == "70.0 %"


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
        ({"name": "rounds_to_target"}, "target is the number that name = 'rounds_to_target' needs"),
        ({"target": 0.5}, "target is the number .* no other takes"),
        ({"name": "rounds_to_target", "target": 97}, "target must be an accuracy, above 0 and at most 1, but got 97"),
        ({"name": "rounds_to_target", "target": 0.9, "last": 5}, "may be reached in any round: remove last"),
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


def test_the_mean_of_large_losses_is_finite_where_their_sum_is_not() -> None:
    assert mean([1.5e308, 1.5e308]) == 1.5e308
    assert math.isnan(mean([math.inf, -math.inf]))


@pytest.mark.parametrize(("figures", "said"), [([math.inf, 1.0], "is inf"), ([math.inf, -math.inf], "is nan")])
def test_a_metric_that_is_not_finite_is_no_value(figures: list[float], said: str) -> None:
    asked = objective(name="metric", metric="odd", last=2)
    rows = [{"round": place, "eval/validation/odd": figure} for place, figure in enumerate(figures)]
    recorded = TrialRows([5], total=2)
    recorded.add(0, rows, finished=True)
    assert (why := recorded.lacks(asked)) is not None
    assert f"with seed 5 the validation odd in rounds 0 to 1 {said}" in why
