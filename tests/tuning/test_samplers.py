"""Every sampler proposes within the space, by an address: the same study and place, the same proposal."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState

import raysim
from tuning import samplers
from tuning.cma_es import CmaEs
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


def test_cmaes_proposes_as_optunas_and_keeps_no_pickle() -> None:
    space = parse(RATES)

    def by_optuna(chosen: samplers.Sampler, space: Space, seed: int, place: int) -> optuna.samplers.BaseSampler:
        made = samplers.make(chosen, space, seed, place)
        assert isinstance(made, CmaEs)
        return optuna.samplers.CmaEsSampler(seed=made._own_seed, warn_independent_sampling=False)

    found = dict[str, list[FrozenTrial]]()
    for name, make in (("ours", samplers.make), ("theirs", by_optuna)):
        study = optuna.create_study(direction="maximize")
        for place in range(40):
            study.sampler = make(sampler(name="cmaes"), space, 0, place)
            trial = study.ask()
            space.suggest(trial)
            if place == 11:
                study.tell(trial, state=TrialState.FAIL)
            else:
                study.tell(
                    trial, -abs(trial.params["client.optimizer.lr"] - 0.03) - trial.params["server.optimizer.lr"]
                )
        found[name] = study.trials
    # A pickle keeps half of a symmetric matrix, so last digits differ.
    for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
        assert ours.params == pytest.approx(theirs.params, rel=1e-9)
    assert max(trial.system_attrs.get("cma:generation", 0) for trial in found["ours"]) >= 4
    assert any("cma:optimizer:0" in trial.system_attrs for trial in found["theirs"])
    assert {key for trial in found["ours"] for key in trial.system_attrs} == {"cma:generation"}


def test_a_pickle_in_a_storage_is_not_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    code = pickle.dumps(Trap(trap)).hex()
    space, study = parse(RATES), optuna.create_study(direction="maximize")
    for place in range(3):
        study.sampler = samplers.make(sampler(name="cmaes"), space, 0, place)
        trial = study.ask()
        space.suggest(trial)
        study._storage.set_trial_system_attr(trial._trial_id, "cma:optimizer:0", code)
        study.tell(trial, trial.params["client.optimizer.lr"])
    assert not trap.exists()


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


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


def test_a_listed_number_of_a_range_of_whole_numbers_is_whole() -> None:
    space = parse({"client.epochs": {"int": [1, 5]}})
    samplers.check(sampler(name="listed", configurations=[{"client.epochs": 2.0}]), space)
    assert [type(number) for number in space.params({"client.epochs": 2.0}).values()] == [int]
    with pytest.raises(raysim.ExperimentError, match=r"configurations\[0\]: client\.epochs must be one of .* got 2\.5"):
        samplers.check(sampler(name="listed", configurations=[{"client.epochs": 2.5}]), space)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    with pytest.raises(raysim.ExperimentError, match=r"pip install 'raysim\[cmaes\]'"):
        samplers.check(sampler(name="cmaes"), parse(RATES))
