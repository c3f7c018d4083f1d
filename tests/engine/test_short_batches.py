"""Where local steps of short batches are recorded: a rule of experiment and data alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client.trainers import trainer_table
from raysim.client.trainers.trainer_choice import ShortBatches
from raysim.engine.plan.resolve import resolve
from raysim.engine.plan.short_batches import steps_of_each
from raysim.engine.rounds.auto_trainer import with_kept_trainer
from tests.support.executors import EXECUTORS, bits
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]


class Skip(nn.Module):
    """No sequence of layers, so its local step is recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return cast(Tensor, self.out(h + torch.tanh(self.b(h))))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # Sizes are 3, 5, ..., 41: every client has a last batch of 1 or of 3.
        ({}, 7 / 2),
        ({"cohort": {"size": 8}}, 8 / 2),
        ({"client": {"batch_size": 4, "epochs": 3}}, 3 * 7 / 2),
        ({"client": {"batch_size": 4, "fill_last_batch": True}}, 0),
        # The client of 3 examples keeps its only batch.
        ({"client": {"batch_size": 4, "drop_last": True}}, 7 / 20),
        ({"client": {"batch_size": 50}}, 7 / 20),
        ({"client": {"batch_size": "full"}}, 0),
        # Of two local steps, the second is short where there are 5 or 7 examples; the client of 3 takes two short ones.
        ({"client": {"batch_size": 4, "local_steps": 2}}, 7 * 4 / 20 / 2),
        ({"cohort": {"sampler": {"name": "bernoulli", "probability": 0.5}}}, 10 / 2),
        # Only the size of the first round counts.
        ({"cohort": {"size": 7, "growth": {"every": 1}}}, 7 / 2),
    ],
)
def test_expected_steps_of_each_short_length(
    changes: dict[str, Any], expected: float, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    made = experiment(**changes)
    assert steps_of_each(made, dataset) == pytest.approx(expected)
    # Neither the number of rounds nor that of workers matters.
    assert steps_of_each(made.changed({"rounds": 4000, "engine.workers": 2}), dataset) == steps_of_each(made, dataset)


def test_many_clients_are_counted_by_some() -> None:
    made = raysim.Experiment.model_validate({"cohort": {"size": 100}, "client": {"batch_size": 4}})
    data = raysim.FederatedDataset.from_clients(train=make_clients([5] * 10_001))
    assert steps_of_each(made, data) == pytest.approx(100)


@pytest.mark.parametrize(("size", "way"), [(1, "by autograd"), (2, "resized")])
def test_short_batches_are_interpreted_from_one_step_of_each_length_on(
    size: int, way: str, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = resolve(experiment(cohort={"size": size}), dataset=dataset, model=Skip).choice
    assert (choice.trainer, choice.short_batches) == ("interpreted", way)
    # Beyond so many numbers a recording costs more than it saves.
    monkeypatch.setattr(trainer_table, "MOST_SHAPES", {"interpreted": 10})
    beyond = resolve(experiment(cohort={"size": size}), dataset=dataset, model=Skip).choice
    assert beyond.short_batches == "by autograd"


def test_the_rule_is_in_the_fingerprint(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plan = resolve(experiment(cohort={"size": 8}), dataset=dataset, model=Skip)
    ways = get_args(ShortBatches)
    assert plan.choice.short_batches in ways
    others = {replace(plan, choice=replace(plan.choice, short_batches=way)).fingerprint for way in ways}
    assert len(others) == len(ways)


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("size", [1, 2])
def test_workers_change_no_bit_on_either_side_of_the_rule(
    size: int, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    made = experiment(cohort={"size": size}, rounds=2)
    here, *others = (
        [bits(finished) for finished in raysim.rounds(made.changed({"engine": engine}), dataset=dataset, model=Skip)]
        for engine in (EXECUTORS["in-process"], {"workers": 1, "cpus_per_worker": 0.5}, EXECUTORS["2 workers"])
    )
    assert others == [here, here]


def test_trainers_that_call_torch_record_each_length(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    made = experiment(cohort={"size": 10}, engine={"workers": 0, "trainer": "recorded"})
    assert resolve(made, dataset=dataset, model=Skip).choice.short_batches == "recorded"


@pytest.mark.parametrize("way", ["by autograd", "recorded"])
def test_a_run_that_took_short_batches_otherwise_goes_on_so(
    way: str, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = experiment(cohort={"size": 4}, rounds=3)
    with monkeypatch.context() as patch:
        patch.setattr(trainer_table, "_short_batches", lambda *_: way)
        whole = raysim.run(made, dataset=dataset, model=Skip, path=tmp_path / "whole")
        raysim.run(made.changed({"rounds": 2}), dataset=dataset, model=Skip, path=tmp_path / "resumed")
    on = raysim.run(made, dataset=dataset, model=Skip, path=tmp_path / "resumed", resume=True)
    assert all(torch.equal(on.params[name], one) for name, one in whole.params.items())
    plan = resolve(made, dataset=dataset, model=Skip)
    assert with_kept_trainer(plan, tmp_path / "resumed").choice.short_batches == way
    if way == "recorded":
        # A step that is made from others has the same last digits here.
        return
    anew = raysim.run(made, dataset=dataset, model=Skip, path=tmp_path / "anew")
    assert not all(torch.equal(anew.params[name], one) for name, one in whole.params.items())
