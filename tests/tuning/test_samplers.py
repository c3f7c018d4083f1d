"""Every sampler proposes within the space, by an address: the same study and place, the same proposal."""

from __future__ import annotations

from typing import Any

import optuna
import pytest

import raysim
from tuning import samplers
from tuning.section import TuningSection
from tuning.space import Space, parse

RATES = {"client.optimizer.lr": {"log": [1e-3, 1]}, "server.optimizer.lr": {"uniform": [0, 1]}}
GRID = {"client.optimizer.lr": {"grid": [0.1, 1]}, "server.optimizer.lr": {"grid": [0.1, 1, 10]}}


def sampler(**keys: Any) -> samplers.Sampler:
    chosen = TuningSection.checked({"space": {}, "sampler": keys}).sampler
    assert chosen is not None
    return chosen


def proposed(chosen: samplers.Sampler, space: Space, seed: int = 0, places: int = 6) -> list[dict[str, Any]]:
    study = optuna.create_study(direction="maximize")
    for place in range(places):
        study.sampler = samplers.make(chosen, space, seed, place)
        trial = study.ask()
        space.suggest(trial)
        study.tell(trial, trial.params["client.optimizer.lr"])
    return [trial.params for trial in study.trials]


@pytest.mark.parametrize(
    "keys", [{"name": "random"}, {"name": "tpe", "startup": 2}, {"name": "gp", "startup": 2}, {"name": "cmaes"}]
)
def test_proposals_are_addressed_and_differ(keys: dict[str, Any]) -> None:
    chosen, space = sampler(**keys), parse(RATES)
    first = proposed(chosen, space, places=4)
    assert first == proposed(chosen, space, places=4)
    assert len({tuple(params.values()) for params in first}) >= 3
    (other,) = proposed(chosen, space, seed=1, places=1)
    assert first[0] != other
    assert proposed(sampler(**keys, seed=1), space, places=1) == [other]


def test_a_grid_is_gone_through_once() -> None:
    space = parse(GRID)
    found = proposed(sampler(name="grid"), space)
    assert len({tuple(sorted(params.items())) for params in found}) == space.size == 6


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("grid", RATES, r"grid goes through lists, but client\.optimizer\.lr, server\.optimizer\.lr has"),
        ("cmaes", GRID, "at least two keys with log, uniform or int, but got 0"),
    ],
)
def test_a_sampler_must_be_defined_on_the_space(name: str, table: dict[str, Any], said: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        samplers.check(sampler(name=name), parse(table))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    with pytest.raises(raysim.ExperimentError, match=r"pip install 'raysim\[cmaes\]'"):
        samplers.check(sampler(name="cmaes"), parse(RATES))
