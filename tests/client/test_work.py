"""How much clients work: drawn, scheduled, capped; and who leaves in mid-round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.client.batches import draw
from raysim.client.section import ClientSection, FineTuning, fine_tuned
from raysim.client.work import stays
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
EVERYONE = np.arange(3000)
ZERO = {"weight": np.zeros((1, 1))}


def taus(round_index: int = 0, seed: int = 0, size: int = 10, **keys: Any) -> Any:
    section = ClientSection.model_validate({"batch_size": 4, **keys})
    return section.work_at(round_index).steps(np.full(len(EVERYONE), size), seed, round_index, EVERYONE)


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, 3),
        ({"epochs": 5}, 15),
        ({"batch_size": "full", "epochs": 2}, 2),
        ({"local_steps": 7}, 7),
        ({"epochs": 5, "max_local_steps": 4}, 4),
        ({"local_steps": 2, "max_local_steps": 4}, 2),
    ],
)
def test_the_number_of_local_steps(keys: dict[str, Any], steps: int) -> None:
    assert set(taus(**keys).tolist()) == {steps}


def test_the_bound_is_not_that_of_work_that_other_keys_ask_for() -> None:
    """As of Ditto's own models, and of the epochs of local groups alone."""
    bounded = ClientSection(batch_size=4, max_local_steps=2)
    of_its_own = bounded.with_work(epochs=3).work_at(0)
    assert of_its_own.steps(np.full(1, 10), 0, 0, np.zeros(1, np.int64)).tolist() == [9]
    assert "personalisation" in str(ClientSection.model_fields["max_local_steps"].description)


def test_drawn_work_is_uniform_and_another_in_every_round() -> None:
    drawn = taus(local_steps={"low": 2, "high": 5})
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [2, 3, 4, 5]
    # 3,000 draws: 750 of each, with a standard deviation of 24.
    assert all(abs(counts - 750) < 5 * 24)
    again = taus(round_index=1, local_steps={"low": 2, "high": 5})
    assert 0.2 < np.mean(drawn == again) < 0.3
    assert np.array_equal(drawn, taus(local_steps={"low": 2, "high": 5}))
    assert not np.array_equal(drawn, taus(seed=1, local_steps={"low": 2, "high": 5}))


def test_drawn_epochs_are_whole_passes() -> None:
    assert set(taus(epochs={"low": 1, "high": 3}).tolist()) == {3, 6, 9}


def test_work_drawn_for_the_run_stays() -> None:
    work = {"low": 1, "high": 9, "per": "run"}
    assert np.array_equal(taus(0, local_steps=work), taus(5, local_steps=work))


def test_a_schedule_changes_the_work_at_its_rounds() -> None:
    schedule = [{"round": 2, "epochs": 2}, {"round": 4, "local_steps": 1}]
    assert [int(taus(t, epochs=5, schedule=schedule)[0]) for t in range(6)] == [15, 15, 6, 6, 1, 1]


def test_a_change_leaves_the_rest_as_it_was() -> None:
    schedule: list[dict[str, Any]] = [{"round": 1, "batch_size": 5}, {"round": 2, "local_steps": 7}]
    schedule += [{"round": 3, "epochs": 3}, {"round": 4, "batch_size": "full"}, {"round": 5, "batch_size": 9}]
    # Ten examples: 2 x 3 batches, 2 x 2, seven, 3 x 2, 3 x 1, 3 x 2.
    assert [int(taus(t, epochs=2, schedule=schedule)[0]) for t in range(6)] == [6, 4, 7, 6, 3, 6]
    assert ClientSection.model_validate({"batch_size": 4, "schedule": schedule}).batch_sizes == {4, 5, 9}


@pytest.mark.parametrize("batch_size", [3, "full"])
def test_batches_of_a_schedule_are_those_of_their_size(batch_size: int | str) -> None:
    keys = {"epochs": 2, "fill_last_batch": True}
    later = ClientSection.model_validate(
        {**keys, "batch_size": 4, "schedule": [{"round": 1, "batch_size": batch_size}]}
    )
    sizes, clients = [5, 8, 1], [0, 1, 2]
    for round_index, own in ((0, 4), (1, batch_size), (2, batch_size)):
        plain = ClientSection.model_validate({**keys, "batch_size": own})
        for got, wanted in zip(
            *(draw(section, sizes, 0, round_index, clients) for section in (later, plain)), strict=True
        ):
            assert (got.bounds, got.order.tolist()) == (wanted.bounds, wanted.order.tolist())


def test_a_schedule_of_batches_holds_for_fine_tuning_too() -> None:
    schedule = [{"round": 1, "epochs": 3}, {"round": 2, "batch_size": 9, "epochs": 4}]
    tuned = fine_tuned(ClientSection.model_validate({"schedule": schedule}), FineTuning(steps=5))
    assert [(tuned.work_at(t).batch_size, tuned.work_at(t).local_steps) for t in range(3)] == [(20, 5), (20, 5), (9, 5)]


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "fused", "stacked", "vmap"])
def test_a_run_whose_batches_grow_is_that_run(trainer: str, experiment: Make) -> None:
    """By hand: full-batch gradient descent from the second round on, on a client with two examples."""
    x, y = np.array([[1.0], [3.0]]), np.array([2.0, 0.0])
    data = raysim.FederatedDataset.from_clients(train={"a": (x, y)})
    client = {
        "optimizer": {"lr": 0.1},
        "batch_size": 1,
        "shuffle": False,
        "schedule": [{"round": 1, "batch_size": 2}],
    }
    engine = {"workers": 0, "dtype": "float64", "trainer": trainer}
    exp = experiment(rounds=2, model=None, client=client, cohort={"size": 1}, engine=engine)
    done = raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(1, 1, bias=False), params=ZERO)
    # The loss of an example is (w x - y)^2.
    w = 0.0
    for a, b in ((1.0, 2.0), (3.0, 0.0)):
        w -= 0.1 * 2 * a * (w * a - b)
    first = w
    w -= 0.1 * ((w - 2) * 1 + (3 * w - 0) * 3)
    assert [float(r.params["weight"]) for r in done] == pytest.approx([first, w])


def test_a_run_follows_its_schedule(experiment: Make) -> None:
    """A loss whose gradient is 1: with lr 1 the weight falls by one a local step."""

    def falling(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.flatten()

    data = raysim.FederatedDataset.from_clients(train={"a": (np.ones((6, 1)), np.zeros(6))})
    client = {"optimizer": {"lr": 1.0}, "batch_size": 2, "epochs": 2, "schedule": [{"round": 2, "local_steps": 1}]}
    exp = experiment(model=None, client=client, cohort={"size": 1})
    steps = raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(1, 1, bias=False), loss=falling, params=ZERO)
    assert [float(done.params["weight"]) for done in steps] == [-6, -12, -13, -14]


def test_the_share_that_leaves_is_the_probability_and_is_addressed() -> None:
    left = ~stays(0.3, 0, 4, EVERYONE)
    # 900 of 3,000, with a standard deviation of 25.
    assert abs(left.sum() - 900) < 5 * 25
    assert np.array_equal(left, ~stays(0.3, 0, 4, EVERYONE))
    assert stays(0.3, 0, 4, EVERYONE[50:60]).tolist() == (~left[50:60]).tolist()
    assert stays(0.0, 0, 4, EVERYONE).all()


def test_who_leaves_is_in_no_sum_and_remembers_nothing(experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients(train=make_clients([4] * 30))
    shared: dict[str, Any] = {"batch_size": 4, "correction": {"name": "scaffold"}}
    here = {"workers": 0, "dtype": "float64", "chunk_size": 1}
    leaving = experiment(client={**shared, "mid_round_dropout": 0.4}, cohort={"size": 20}, engine=here)
    got = list(raysim.rounds(leaving, dataset=data))
    stayed = [
        [c for c in r.cohort if stays(0.4, 0, r.index, np.array([int(c[1:])]))[0]]  # "c7" stands at position 7
        for r in got
    ]
    without = experiment(client=shared, cohort={"sampler": {"name": "replay", "cohorts": stayed}}, engine=here)
    for one, other in zip(got, raysim.rounds(without, dataset=data), strict=True):
        assert one.metrics["dropped"] == 20 - len(other.cohort) == 20 - (one.metrics["clients"] or 0)
        assert one.metrics["bytes_down"] == 20 / len(other.cohort) * (other.metrics["bytes_down"] or 0)
        assert one.metrics["bytes_up"] == other.metrics["bytes_up"]
        for name, value in one.params.items():
            np.testing.assert_allclose(value.numpy(), other.params[name].numpy(), 1e-11, 1e-13)


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"epochs": {"low": 5, "high": 2}}, r"low <= high must hold, but got \(low=5, high=2\)"),
        ({"local_steps": 2, "epochs": 1}, "either epochs or local_steps"),
        ({"schedule": [{"round": 3}]}, "epochs, local_steps or batch_size must say what changes from round 3 on"),
        ({"schedule": [{"round": 3, "epochs": 1, "local_steps": 2}]}, "either epochs or local_steps measures"),
        ({"schedule": [{"round": 3, "epochs": 1}, {"round": 3, "epochs": 2}]}, "the rounds of schedule must rise"),
        ({"mid_round_dropout": 1.0}, "client.mid_round_dropout must be"),
        ({"max_local_steps": 0}, "client.max_local_steps must be"),
    ],
)
def test_work_that_is_not_defined_is_refused(client: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(client=client)
