"""Power of choice: who is drawn, who of them trains, and what the others cost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.cohort import power_of_choice
from raysim.cohort.power_of_choice import PowerOfChoice
from raysim.cohort.sampler import CohortAt
from tests.support.small_data import of_sizes
from tests.support.tanh_federation import SIZES, Params, clients, network, start

Make = Callable[..., raysim.Experiment]
N = len(SIZES)


def made(experiment: Make, size: int, candidates: int, **sections: Any) -> raysim.Experiment:
    return experiment(
        **{
            "rounds": 4,
            "model": None,
            "client": {"optimizer": {"name": "sgd", "lr": 0.05}, "batch_size": 3},
            "cohort": {"size": size, "sampler": {"name": "power_of_choice", "candidates": candidates}},
            "engine": {"workers": 0, "dtype": "float64"},
            **sections,
        }
    )


def run(exp: raysim.Experiment, data: Any = None) -> list[Any]:
    train = clients() if data is None else data
    dataset = raysim.FederatedDataset.from_clients(train=train)
    return list(raysim.rounds(exp, dataset=dataset, model=network, params=start()))


def losses(p: Params) -> dict[str, float]:
    """f_i of every client, in float64 without torch."""
    return {
        name: float(np.mean((np.tanh(x @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"][0] + p["2.bias"][0] - y) ** 2))
        for name, (x, y) in clients().items()
    }


def before(done: list[Any]) -> list[Params]:
    """The model that each round began with."""
    return [start(), *({n: v.numpy() for n, v in one.params.items()} for one in done[:-1])]


def test_with_all_candidates_it_is_a_sort(experiment: Make) -> None:
    done = run(made(experiment, 3, N))
    for one, received in zip(done, before(done), strict=True):
        f = losses(received)
        assert list(one.cohort) == sorted(f, key=lambda name: -f[name])[:3]
        assert (one.metrics["asked"], one.metrics["clients"]) == (N, 3)
    assert len({one.cohort for one in done}) > 1


def test_the_candidates_with_the_largest_losses_train(experiment: Make) -> None:
    """The candidates are those of the sampler, so that their draws are the first of a longer list of candidates."""
    done = run(made(experiment, 2, 3, seed=4))
    sampler = power_of_choice.make(PowerOfChoice(name="power_of_choice", candidates=3))
    for t, (one, received) in enumerate(zip(done, before(done), strict=True)):
        drawn = [str(p) for p in sampler.sample({}, CohortAt(t, 2, of_sizes(SIZES), 4)).tolist()]
        f = losses(received)
        assert list(one.cohort) == sorted(drawn, key=lambda name: -f[name])[:2]
        assert one.metrics["bytes_down"] == 3 * one.metrics["bytes_up"] / 2


def test_candidates_are_drawn_one_after_another_in_proportion_to_examples() -> None:
    sizes = np.array([1, 2, 5, 12])
    sampler = power_of_choice.make(PowerOfChoice(name="power_of_choice", candidates=2))
    at = of_sizes(sizes)
    drawn = np.array([sampler.sample({}, CohortAt(t, 1, at, 3)) for t in range(8000)])
    assert (drawn[:, 0] != drawn[:, 1]).all()
    share = sizes / sizes.sum()
    pairs = np.array([[a * b / (1 - a) if i != j else 0 for j, b in enumerate(share)] for i, a in enumerate(share)])
    expected = 8000 * pairs[~np.eye(4, dtype=bool)]
    counts = np.bincount(4 * drawn[:, 0] + drawn[:, 1], minlength=16).reshape(4, 4)[~np.eye(4, dtype=bool)]
    assert ((counts - expected) ** 2 / expected).sum() < 31.3  # the 0.999 quantile with 11 degrees of freedom


def test_more_candidates_keep_those_of_fewer() -> None:
    few, many = (
        power_of_choice.make(PowerOfChoice(name="power_of_choice", candidates=k)).sample(
            {}, CohortAt(2, 1, of_sizes(SIZES), 0)
        )
        for k in (2, 4)
    )
    assert few.tolist() == many[:2].tolist()


def test_weights_are_equal_by_default_and_may_be_examples(experiment: Make) -> None:
    assert made(experiment, 2, 3).server.weighting == "uniform"
    assert made(experiment, 2, 3, server={"weighting": "examples"}).server.weighting == "examples"


def test_fairness_takes_the_losses_of_those_that_train(experiment: Make) -> None:
    done = run(made(experiment, 2, 4, server={"fairness": {"name": "tilt", "t": 1.0}}))
    for one, received in zip(done, before(done), strict=True):
        f = losses(received)
        assert one.metrics["start_loss"] == pytest.approx(np.mean([f[name] for name in one.cohort]))
        assert one.metrics["start_loss_max"] == pytest.approx(f[one.cohort[0]])


def test_a_candidate_without_a_finite_loss_leaves_the_round(experiment: Make) -> None:
    data = clients()
    data["1"][1][0] = np.inf
    for one in run(made(experiment, 2, N), data):
        assert one.rejected == ("1",)
        assert one.metrics["clients"] == 2
        assert "1" in one.cohort


def test_those_that_leave_in_training_were_asked_too(experiment: Make) -> None:
    client = {"optimizer": {"name": "sgd", "lr": 0.05}, "batch_size": 3, "mid_round_dropout": 0.5}
    done = run(made(experiment, 3, N, client=client, rounds=8))
    assert all(one.metrics["clients"] + one.metrics["dropped"] == len(one.cohort) == 3 for one in done)
    assert all(one.metrics["asked"] == N for one in done)
    assert len({one.metrics["dropped"] for one in done}) > 1


@pytest.mark.parametrize("name", ["scaffold", "mime", "feddane"])
def test_corrections_are_those_of_the_clients_that_train(name: str, experiment: Make) -> None:
    """A replay of the cohorts that were chosen has the same course: nothing of the other candidates remains."""
    correction = {"name": name} | ({"base": "sgd"} if name == "mime" else {"mu": 0.3} if name == "feddane" else {})
    client = {"optimizer": {"name": "sgd", "lr": 0.05}, "batch_size": 3, "correction": correction}
    chosen = run(made(experiment, 2, N, client=client))
    again = {"sampler": {"name": "replay", "cohorts": [list(one.cohort) for one in chosen]}}
    weighting = {"weighting": "uniform"}
    replayed = run(made(experiment, 2, N, client=client, cohort=again, server=weighting))
    for one, other in zip(chosen, replayed, strict=True):
        assert all(torch.equal(one.params[key], other.params[key]) for key in other.params)


def test_a_round_and_a_client_of_it_are_repeated(experiment: Make, tmp_path: Path) -> None:
    exp = made(experiment, 1, 3, checkpoint={"every": 4})
    parts: dict[str, Any] = {"dataset": raysim.FederatedDataset.from_clients(train=clients()), "model": network}
    done = list(raysim.rounds(exp, params=start(), path=tmp_path / "run", **parts))
    (client,) = done[2].cohort
    repeated = raysim.replay(tmp_path / "run", 2, client=client, params=start(), **parts)
    assert isinstance(repeated, raysim.ClientUpdate)
    assert repeated.update is not None
    for key, value in repeated.update.items():
        np.testing.assert_allclose(value, done[2].params[key] - done[1].params[key], 1e-9, 1e-12)
    others = {str(i) for i in range(N)} - {client}
    with pytest.raises(raysim.RunFolderError, match="was not in round 2"):
        raysim.replay(tmp_path / "run", 2, client=min(others), params=start(), **parts)


@pytest.mark.usefixtures("ray_cluster")
def test_workers_do_not_change_who_is_chosen(experiment: Make) -> None:
    sections = {"server": {"fairness": {"name": "qffl", "q": 1.0}}}
    alone, workers = (
        run(made(experiment, 3, N, engine={"dtype": "float64", "chunk_size": 1, **where}, **sections))
        for where in ({"workers": 0}, {"workers": 2, "cpus_per_worker": 0.5})
    )
    for one, other in zip(alone, workers, strict=True):
        assert one.cohort == other.cohort
        assert all(torch.equal(one.params[key], other.params[key]) for key in other.params)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"cohort": {"size": 4, "sampler": {"name": "power_of_choice", "candidates": 3}}}, "candidates >= size"),
        ({"cohort": {"sampler": {"name": "power_of_choice", "candidates": 3}}}, "size must be given"),
        ({"cohort": {"size": 2, "sampler": {"name": "power_of_choice"}}}, "candidates must be given"),
        ({"server": {"diagnostics": {"probe": 2}}}, "remove the probe"),
    ],
)
def test_what_is_not_defined_is_refused(sections: dict[str, Any], why: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=why):
        made(experiment, 2, 3, **sections)


@pytest.mark.parametrize(
    ("cohort", "why"),
    [
        ({"size": 2, "sampler": {"name": "power_of_choice", "candidates": 6}}, "candidates = 6 and 5 training"),
        (
            {"size": 2, "growth": {"every": 1}, "sampler": {"name": "power_of_choice", "candidates": 3}},
            "candidates = 3 and 5 clients to train",
        ),
    ],
)
def test_too_few_clients_or_candidates_are_named(cohort: dict[str, Any], why: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=why):
        run(made(experiment, 2, 3, cohort=cohort))


def test_a_sampler_of_one_s_own_may_choose_too(experiment: Make) -> None:
    def make(section: Any) -> raysim.Sampler:
        def sample(state: Any, at: Any) -> Any:
            return np.arange(4)

        def choose(at: Any, drawn: Any, losses: Any) -> Any:
            return drawn[np.argsort(losses)[: at.size]]

        return raysim.Sampler(lambda at: {}, sample, choose=choose, asks=4)

    exp = made(experiment, 2, 3, cohort={"size": 2, "sampler": {"name": "own"}})
    dataset = raysim.FederatedDataset.from_clients(train=clients())
    done = list(raysim.rounds(exp, dataset=dataset, model=network, params=start(), sampler=make))
    for one, received in zip(done, before(done), strict=True):
        f = losses(received)
        assert list(one.cohort) == sorted("0123", key=lambda name: f[name])[:2]
        assert one.metrics["asked"] == 4


def test_strangers_cannot_be_chosen(experiment: Make) -> None:
    def make(section: Any) -> raysim.Sampler:
        return raysim.Sampler(
            lambda at: {}, lambda state, at: np.arange(2), choose=lambda at, drawn, losses: np.array([4, 3]), asks=2
        )

    exp = made(experiment, 2, 3, cohort={"size": 2, "sampler": {"name": "own"}})
    dataset = raysim.FederatedDataset.from_clients(train=clients())
    with pytest.raises(raysim.ExperimentError, match=r"must return clients that were drawn, but returned \[3, 4\]"):
        list(raysim.rounds(exp, dataset=dataset, model=network, params=start(), sampler=make))


def test_evaluation_mode_chooses(experiment: Make) -> None:
    """Dropout does not blur the choice: equal clients have equal losses, and the first drawn train."""

    def dropping() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1))

    x, y = np.ones((4, 3)), np.zeros(4)
    dataset = raysim.FederatedDataset.from_clients(train={f"{i}": (x, y) for i in range(6)})
    exp = made(experiment, 2, 6)
    sampler = power_of_choice.make(PowerOfChoice(name="power_of_choice", candidates=6))
    for t, one in enumerate(raysim.rounds(exp, dataset=dataset, model=dropping)):
        drawn = sampler.sample({}, CohortAt(t, 2, of_sizes([4] * 6), exp.seed))
        assert list(one.cohort) == [str(p) for p in drawn[:2].tolist()]
