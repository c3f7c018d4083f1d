"""What few validation clients cost, by hand and by laws."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

import raysim
from tuning import result
from tuning.client_sums import ClientSums
from tuning.noise import laplace
from tuning.objective import Objective
from tuning.regret import DRAWS, bootstrap
from tuning.section import TuningSection, checked_section
from tuning.space import parse


def test_one_of_two_clients_chooses_by_a_coin() -> None:
    """By all clients the first is better by 0.05; one client alone prefers it, the other the second."""
    first: ClientSums = {"a": (9.0, 10), "b": (2.0, 10)}
    second: ClientSums = {"a": (2.0, 10), "b": (8.0, 10)}
    one, both = bootstrap([[first], [second]], is_maximised=True)
    assert (one.clients, both.clients) == (1, 2)
    for found, again in ((one, 1 / 2), (both, 3 / 4)):
        # Of two draws with replacement, only b twice prefers the second.
        assert found.again == pytest.approx(again, abs=4 * (again * (1 - again) / DRAWS) ** 0.5)
        assert found.mean == pytest.approx(0.05 * (1 - found.again))
        assert found.high == pytest.approx(0.05)


def test_of_equal_scores_the_first_is_chosen_whatever_rounding_says() -> None:
    """Both have 0.6 + 0.3 hits, as sums in another order: a sample of both clients has no reason for the second."""
    first: ClientSums = {"a": (0.1 + 0.2 + 0.3, 1), "b": (0.3, 1)}
    second: ClientSums = {"a": (0.3 + 0.2 + 0.1, 1), "b": (0.3, 1)}
    assert first["a"][0] > second["a"][0]
    for is_maximised in (True, False):
        for found in (bootstrap([[first], [second]], is_maximised), bootstrap([[second], [first]], is_maximised)):
            assert [(each.again, each.mean, each.high) for each in found] == [(1.0, 0.0, 0.0)] * 2


def test_the_best_may_be_another_one_than_all_clients_choose() -> None:
    """Noise has chosen it; what samples lose is still compared with the best by all clients."""
    good, bad = {"a": (9.0, 10)}, {"a": (1.0, 10)}
    (found,) = bootstrap([[bad], [good]], is_maximised=True, best=0)
    assert (found.again, found.mean) == (0.0, 0.0)


def test_losses_are_to_be_small() -> None:
    good, bad = {"a": (1.0, 10)}, {"a": (9.0, 10)}
    assert bootstrap([[bad], [good]], is_maximised=False)[-1].again == 1.0


def test_seeds_with_other_clients_are_drawn_apart_and_with_the_same_together() -> None:
    """Four seeds of the same clients tell no more than one; with other clients the errors average out."""

    def runs(prefix: list[str]) -> list[list[ClientSums]]:
        drawn = np.random.default_rng(0).normal(size=(6, 10))
        return [[{f"{name}{k}": (float(x), 1) for k, x in enumerate(row)} for name in prefix] for row in drawn]

    alone = bootstrap(runs([""]), is_maximised=True)[-1]
    assert bootstrap(runs(["", "", "", ""]), is_maximised=True)[-1] == alone
    assert bootstrap(runs(["a", "b", "c", "d"]), is_maximised=True)[-1].again > alone.again


@pytest.mark.parametrize("other", [{"a": (9.0, 10), "c": (2.0, 10)}, {"a": (9.0, 30), "b": (2.0, 10)}])
def test_configurations_on_other_clients_have_no_sample_in_common(other: ClientSums) -> None:
    assert bootstrap([[{"a": (9.0, 10), "b": (2.0, 10)}], [other]], is_maximised=True) == []


def trial(number: int, value: float | None, outcome: str = "finished", cost: float = 10.0) -> FrozenTrial:
    told = {"outcome": outcome, "facts": {"spent": {"rounds": cost}}}
    done = create_trial(
        state=TrialState.PRUNED if value is None else TrialState.COMPLETE,
        value=value,
        params={"rate": number},
        distributions={"rate": IntDistribution(0, 9)},
        user_attrs=told,
    )
    done.number = number
    return done


def test_smaller_budgets_choose_the_best_that_they_reach() -> None:
    """Of 80 rounds a quarter are two trials; so is a half, because the third cost 30 before it was stopped."""
    trials = [trial(0, 0.5), trial(1, 0.4), trial(2, None, "pruned", 30.0), trial(3, 0.7), trial(4, 0.6, cost=20.0)]
    space = parse({"rate": {"int": [0, 9]}})
    assert [at for at, _ in result.incumbents(trials, Objective(), "rounds")] == [10.0, 60.0]
    quarter, half = result.smaller(trials, space, Objective(), "rounds")
    assert (quarter.amount, quarter.values, quarter.value) == (20.0, {"rate": 0}, 0.5)
    assert (half.amount, half.number) == (40.0, 0)
    fall = Objective(name="loss")
    assert [one.number for one in result.smaller(trials, space, fall, "rounds")] == [1, 1]
    assert result.smaller(trials, space, fall, "bytes") == ()
    # Of 85 rounds a quarter is 21 whole ones.
    longer = [*trials[:-1], trial(4, 0.6, cost=25.0)]
    assert [one.amount for one in result.smaller(longer, space, Objective(), "rounds")] == [21.0, 42.0]


def test_the_front_is_what_no_other_trial_beats_in_both() -> None:
    costs = [(0.5, 10.0), (0.5, 20.0), (0.9, 30.0), (0.6, 40.0), (0.9, 30.0), (0.3, 10.0)]
    trials = [trial(number, value, cost=cost) for number, (value, cost) in enumerate(costs)]
    assert result.front([*trials, trial(9, None, "pruned", 1.0)], Objective(), "rounds") == (0, 2, 4)
    assert result.front(trials, Objective(name="loss"), "rounds") == (5,)


def test_noise_is_that_of_laplace() -> None:
    draws = np.array([laplace(0.5, [0, trial, 0]) for trial in range(4_000)])
    assert draws.mean() == pytest.approx(0, abs=5 * 0.5 * 2**0.5 / 4_000**0.5)
    # The mean of |x| is the scale, and so is its deviation.
    assert np.abs(draws).mean() == pytest.approx(0.5, abs=5 * 0.5 / 4_000**0.5)
    assert laplace(0.5, [0, 1, 0]) != laplace(0.5, [0, 1, 1])


def test_rounds_to_a_target_have_no_noise() -> None:
    exp = raysim.Experiment.model_validate(
        {"name": "test", "rounds": 4, "model": {"name": "linear"}, "cohort": {"size": 4}, "evaluation": {"every": 1}}
    )
    keys = {"space": {"client.optimizer.lr": {"grid": [0.1, 1.0]}}, "laplace": 0.1}
    assert isinstance(checked_section(keys, exp), TuningSection)
    with pytest.raises(raysim.ExperimentError, match=r"tuning\.laplace is noise of scores"):
        checked_section({**keys, "objective": {"name": "rounds_to_target", "target": 0.5}}, exp)
