"""A study's space: what can be written, what it means, and what is refused before anything runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raysim
from tuning import space
from tuning.dimension import KINDS

RATES = {"client": {"optimizer": {"lr": {"grid": [0.01, 0.1, 1]}}}}


def test_tables_within_tables_are_dotted_keys() -> None:
    assert space.parse(RATES) == space.parse({"client.optimizer.lr": {"grid": [0.01, 0.1, 1]}})
    assert space.parse(RATES).plain() == {"client.optimizer.lr": {"grid": [0.01, 0.1, 1.0]}}


@pytest.mark.parametrize("turned", [False, True])
def test_a_key_is_not_set_by_a_table_too(turned: bool, experiment: Callable[..., raysim.Experiment]) -> None:
    table = {"client.optimizer": {"choices": [{"name": "sgd"}, {"name": "sgd", "lr": 0.2}]}}
    both = {**RATES, **table} if turned else {**table, **RATES}
    with pytest.raises(
        raysim.ExperimentError, match=r"space\.client\.optimizer: its tables have lr, which .*optimizer\.lr"
    ):
        space.check(space.parse(both), experiment())
    without = {"client.optimizer": {"choices": [{"name": "sgd"}, {"name": "adam"}]}, **RATES}
    space.check(space.parse(without), experiment())


@pytest.mark.parametrize(
    ("sections", "key", "tables"),
    [
        ({}, "cohort.seed", [{"size": 4, "seed": 1}, {"size": 5, "seed": 2}]),
        ({"model": {"name": "linear", "seed": 7}}, "model.seed", [{"name": "linear"}]),
        (
            {"data": {"name": "digits", "clients": 10}},
            "data.holdout",
            [{"name": "digits", "clients": 10, "holdout": 0.5}],
        ),
    ],
)
def test_a_table_does_not_change_the_protocol(
    sections: dict[str, Any], key: str, tables: list[Any], experiment: Callable[..., raysim.Experiment]
) -> None:
    varied = space.parse({key.partition(".")[0]: {"choices": tables}})
    with pytest.raises(raysim.ExperimentError, match=rf"{key} is the same for all trials"):
        space.check(varied, experiment(**sections))


def test_a_table_may_have_the_protocol_of_the_experiment(experiment: Callable[..., raysim.Experiment]) -> None:
    models = [{"name": "linear", "seed": 7}, {"name": "mlp", "hidden": [4], "seed": 7}]
    space.check(space.parse({"model": {"choices": models}}), experiment(model=models[0]))


def test_the_size_is_the_product_of_what_is_listed() -> None:
    listed = space.parse(
        {**RATES, "cohort.size": {"int": [4, 7]}, "server.weighting": {"choices": ["examples", "ida"]}}
    )
    assert listed.size == 3 * 4 * 2
    assert listed.grid is not None
    assert listed.grid["cohort.size"] == [4, 5, 6, 7]
    assert space.parse({**RATES, "client.correction.mu": {"uniform": [0, 1]}}).size is None


def test_whole_numbers_up_to_the_largest_that_floats_hold_are_drawn() -> None:
    read = space.parse({"a": {"int": [2**53 - 1, 2**53]}, "b": {"grid": [2**53 + 1, 3]}})
    study, met = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)), set[Any]()
    for _ in range(30):
        trial = study.ask()
        read.suggest(trial)
        met |= set(read.values(trial.params).items())
    assert met == {("a", 2**53 - 1), ("a", 2**53), ("b", 2**53 + 1), ("b", 3)}


def test_a_whole_table_can_be_a_choice() -> None:
    tables = [{"name": "sgd", "lr": 1.0}, {"name": "adam", "lr": 0.01}]
    read = space.parse({"server.optimizer": {"choices": tables}})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    met = []
    for _ in range(8):
        trial = study.ask()
        read.suggest(trial)
        met.append(read.values(trial.params)["server.optimizer"])
    assert all(table in met for table in tables)


@given(st.floats(1e-6, 1e3), st.floats(1.001, 1e6), st.sampled_from(["log", "uniform"]))
def test_what_is_proposed_lies_between_the_ends(low: float, factor: float, kind: str) -> None:
    read = space.parse({"client.optimizer.lr": {kind: [low, low * factor]}})
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    read.suggest(trial)
    assert low <= read.values(trial.params)["client.optimizer.lr"] <= low * factor


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "at least one key"),
        (
            {"client.optimizer.lr": {"loguniform": [0.1, 1]}},
            r"client\.optimizer\.lr must be one of grid, .*, int, but got 'loguniform' \(did you mean 'log'\?\)$",
        ),
        ({"client.optimizer.lr": {"unifrom": [0.1, 1]}}, r"got 'unifrom' \(did you mean 'uniform'\?\)$"),
        ({"client.optimizer.lr": [0.1, 1]}, r"client\.optimizer\.lr must be a table with one of grid"),
        ({"client": {"optimizer": {"lr": 0.1}}}, r"client\.optimizer\.lr must be a table with one of grid.* got 0\.1"),
        ({"a": {"grid": [1], "log": [1, 2]}}, "one of grid.* and nothing else, but got grid, log"),
        ({"a": {"grid": 3}}, r"a\.grid must be a list, but got 3"),
        ({"a": {"grid": []}}, r"a\.grid must be a list of at least one value, but got \[\]"),
        ({"a": {"grid": [1, 2, 1.0]}}, "values that differ"),
        ({"a": {"grid": ["x"]}}, "list of numbers, .* or take choices"),
        ({"a": {"log": [0, 1]}}, "low > 0"),
        ({"a": {"log": [1, 1]}}, "low < high"),
        ({"a": {"uniform": [1, 2, 3]}}, r"\[low, high\]"),
        ({"a": {"uniform": [True, 2]}}, r"\[low, high\]"),
        ({"a": {"int": [1, 2.5]}}, "both whole numbers"),
        # Samplers draw by floats: of these six they would miss the odd ones.
        ({"a": {"int": [2**53, 2**53 + 5]}}, r"sizes up to 2\^53, but got .*: samplers miss some beyond it"),
        ({"a": {"int": [-(2**53) - 1, 0]}}, r"sizes up to 2\^53"),
        ({"a": {"uniform": [-1e308, 1e308]}}, "a finite difference"),
        ({"a": {"grid": [2**53 + 1, 0.5]}}, r"whole numbers alone, or have none above 2\^53"),
        *(
            (
                {"client": {"lr": {kind: [1, value]}}},
                rf"^tuning\.space\.client\.lr\.{kind}\[1\] .* finite number",
            )
            for kind in KINDS
            for value in (math.nan, math.inf)
        ),
        (
            {"a": {"choices": [{"lr": -math.inf}]}},
            r"tuning\.space\.a\.choices\[0\]\.lr .* finite number, .* -inf",
        ),
        ({"a": {"grid": [10**400, 1.0]}}, r"tuning\.space\.a\.grid\[0\] must be a number of 64 bits"),
        ({"a": {"log": [1, 10**400]}}, r"tuning\.space\.a\.log\[1\] must be a number of 64 bits"),
    ],
)
def test_what_is_no_space(table: dict[str, Any], said: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        space.parse(table)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"client.optimizer.rate": {"grid": [1.0]}}, r"unknown key 'client\.optimizer\.rate'"),
        (
            {"client.optimizer.lr": {"grid": [1.0]}, "client.epoch": {"grid": [3, 4]}},
            r"^tuning\.space\.client\.epoch with the value 3: unknown key 'client\.epoch'",
        ),
        (
            {"client.optimizer.lr": {"choices": ["fast"]}},
            r"with the value 'fast': client\.optimizer\.lr must be a number",
        ),
        ({"client.optimizer.lr": {"uniform": [-1, 1]}}, r"with the value -1: client\.optimizer\.lr"),
        ({"client.epochs": {"uniform": [1, 4]}}, r"client\.epochs with the value 2\.85"),
        ({"rounds.x": {"grid": [1]}}, "goes through rounds"),
        ({"seed": {"int": [0, 9]}}, "cannot vary within a study"),
        ({"data.holdout": {"grid": [0.1, 0.2]}}, "cannot vary within a study"),
        ({"evaluation.every": {"grid": [1, 2]}}, "cannot vary within a study"),
    ],
)
def test_what_does_not_fit_the_experiment(
    table: dict[str, Any], said: str, experiment: Callable[..., raysim.Experiment]
) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        space.check(space.parse(table), experiment())


@pytest.mark.parametrize("change", [{"optimizer.lr": 0.2}, {"optimizer": {"name": "sgd", "lr": 0.2}}])
def test_a_key_that_every_configuration_of_fedex_sets_tunes_nothing(
    change: dict[str, Any], experiment: Callable[..., raysim.Experiment]
) -> None:
    with pytest.raises(
        raysim.ExperimentError, match=r"every configuration of fedex\.configs sets client\.optimizer\.lr"
    ):
        space.check(space.parse(RATES), experiment(fedex={"configs": [change, {"optimizer.lr": 0.1}]}))
    space.check(space.parse(RATES), experiment(fedex={"configs": [change, {"epochs": 2}]}))


@pytest.mark.parametrize("place", [0, 1])
def test_keys_that_belong_together_are_tried_together(place: int, experiment: Callable[..., raysim.Experiment]) -> None:
    keys: list[tuple[str, dict[str, list[Any]]]] = [("server.optimizer.beta2", {"grid": [0.9, 0.99]})]
    keys.insert(place, ("server.optimizer.name", {"choices": ["adam"]}))
    space.check(space.parse(dict(keys)), experiment())
    keys[1 - place] = ("server.optimizer.beta2", {"grid": [0.9, 7.0]})
    with pytest.raises(raysim.ExperimentError, match=r"beta2 with the value 7\.0"):
        space.check(space.parse(dict(keys)), experiment())
