"""How a plan cuts a cohort, and what it takes a chunk to cost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client import batches
from raysim.engine.plan import checks
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from tests.support.small_data import make_clients

# Twenty clients of 3, 5, ... 41 examples.
BATCH = 4


def plan_of(experiment: Callable[..., raysim.Experiment], dataset: raysim.FederatedDataset, **engine: Any) -> Plan:
    return resolve(experiment(client={"batch_size": BATCH}, engine={"workers": 0, **engine}), dataset=dataset)


@pytest.mark.parametrize("trainer", ["stacked", "vmap", "fused", "one_by_one", "compiled"])
@pytest.mark.parametrize("chunk_size", ["auto", 3])
def test_a_chunk_costs_what_its_clients_do_and_with_a_client_axis_the_steps_of_its_longest(
    experiment: Callable[..., raysim.Experiment], dataset: raysim.FederatedDataset, trainer: str, chunk_size: int | str
) -> None:
    plan = plan_of(experiment, dataset, trainer=trainer, chunk_size=chunk_size)
    planned, costs = plan.chunks(np.arange(20), 0)
    assert sorted(member for chunk in planned for member in chunk) == list(range(20))
    steps = np.ceil((3 + 2 * np.arange(20)) / BATCH).astype(int)
    rows = steps * np.minimum(BATCH, 3 + 2 * np.arange(20))
    overhead = plan.choice.overhead
    assert bool(overhead) == (trainer in ("stacked", "vmap"))
    assert costs == [overhead * steps[list(chunk)].max() + rows[list(chunk)].sum() for chunk in planned]
    if chunk_size == 3:
        assert max(map(len, planned)) <= 3


MUCH: dict[str, dict[str, Any]] = {
    "epochs": {"epochs": 25},
    "most that may be drawn": {"epochs": {"low": 1, "high": 25}},
    "later work": {"schedule": [{"round": 3, "epochs": 25}]},
    "a personal model": {"personalisation": {"name": "ditto", "lam": 0.1, "epochs": 25}},
}


@pytest.mark.parametrize("name", MUCH)
def test_more_work_than_can_be_ordered_is_refused_before_the_first_round(
    name: str,
    experiment: Callable[..., raysim.Experiment],
    dataset: raysim.FederatedDataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever cohort first has the largest client, of 41 examples."""
    monkeypatch.setattr(batches, "MOST_ORDERED", 1000)
    first = 3 if name == "later work" else 0
    with pytest.raises(raysim.ExperimentError, match=rf"a client processes 1,025 examples in round {first}, "):
        resolve(experiment(client=MUCH[name]), dataset=dataset)
    resolve(experiment(client={"epochs": 24, "schedule": [{"round": 4, "epochs": 25}]}), dataset=dataset)


ONE_SMALL = {"sampler": {"name": "replay", "cohorts": [["c0"]] * 4}}


@pytest.mark.parametrize(
    ("refused", "sections"),
    [
        (False, {"cohort": ONE_SMALL}),
        (False, {"cohort": {"size": 1, "sampler": {"name": "replay", "rounds": {t: ["c0"] for t in range(4)}}}}),
        # The largest client of 41 examples is the last.
        (True, {"cohort": {"sampler": {"name": "replay", "cohorts": [["c0"]] * 3 + [["c19"]]}}}),
        (True, {"cohort": {"size": 1, "sampler": {"name": "replay", "rounds": {0: ["c0"]}}}}),
        (True, {"cohort": ONE_SMALL, "server": {"diagnostics": {"probe": 2}}}),
        (True, {"cohort": ONE_SMALL, "client": {"epochs": 25, "personalisation": {"name": "ditto", "lam": 0.1}}}),
        (True, {}),
    ],
    ids=["cohorts", "rounds", "drawn", "other rounds", "probe", "personal", "uniform"],
)
def test_clients_that_may_train_are_looked_at_and_no_others(
    refused: bool,
    sections: dict[str, Any],
    experiment: Callable[..., raysim.Experiment],
    dataset: raysim.FederatedDataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "MOST_ORDERED", 1000)
    # Of generated clients only.
    monkeypatch.setattr(checks, "MOST_SIZES", 5)
    exp = experiment(**{"client": {"epochs": 25}, **sections})
    if not refused:
        resolve(exp, dataset=dataset)
        return
    with pytest.raises(raysim.ExperimentError, match=r"a client processes 1,025 examples in round 0, "):
        resolve(exp, dataset=dataset)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_replay_of_generated_clients_is_of_those_that_it_draws(
    is_refused: bool, experiment: Callable[..., raysim.Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    generated = {"name": "synthetic", "clients": 50}
    train = resolve(experiment(data=generated)).dataset.train
    sizes = train.sizes()
    drawn = int(sizes.argmax() if is_refused else sizes.argmin())
    monkeypatch.setattr(batches, "MOST_ORDERED", 5 * int(sizes.max()) - 1)
    monkeypatch.setattr(checks, "MOST_SIZES", 0 if is_refused else 50)
    exp = experiment(
        data=generated,
        client={"epochs": 5, "optimizer": {"name": "sgd", "lr": 0.1}},
        cohort={"sampler": {"name": "replay", "cohorts": [[train.id_of(drawn)]] * 4}},
    )
    with pytest.raises(raysim.ExperimentError, match="a client processes") if is_refused else nullcontext():
        resolve(exp)


@pytest.mark.parametrize("trainer", ["stacked", "one_by_one"])
def test_no_chunk_has_more_than_can_be_ordered(
    trainer: str,
    experiment: Callable[..., raysim.Experiment],
    dataset: raysim.FederatedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "MOST_ORDERED", 50)
    exp = experiment(cohort={"size": 20}, engine={"workers": 0, "trainer": trainer, "chunk_size": 5})
    planned, costs = resolve(exp, dataset=dataset).chunks(np.arange(20), 0)
    assert sorted(member for chunk in planned for member in chunk) == list(range(20))
    assert max(sum(3 + 2 * member for member in chunk) for chunk in planned) <= 50
    assert len(costs) == len(planned) < 20
    assert raysim.run(exp, dataset=dataset, path=tmp_path / "run", progress=False).rounds.num_rows == exp.rounds


class Centred(nn.Module):
    """Each example less the mean of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.below(x)
        scores: Tensor = self.above(hidden - hidden.mean(0))
        return scores


def test_a_client_axis_is_refused_to_a_module_that_mixes_examples(
    experiment: Callable[..., raysim.Experiment], dataset: raysim.FederatedDataset
) -> None:
    """Clients of unequal batches are filled up to the largest there."""
    exp = experiment(model=None, engine={"workers": 0, "trainer": "vmap"})
    with pytest.raises(raysim.ModelError, match="mixes the examples of a batch"):
        resolve(exp, dataset=dataset, model=Centred)


class Squeezed(nn.Linear):
    """A score for each example; of one example, a number without an axis."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze()


@pytest.mark.parametrize("sizes", [[8] * 8, [9] * 8, [1, 8, 8, 8]])
def test_a_client_axis_is_refused_to_a_module_that_fails_for_one_example_where_a_batch_has_one(
    sizes: list[int], experiment: Callable[..., raysim.Experiment]
) -> None:
    clients = {name: (x, x[:, 0]) for name, (x, _) in make_clients(sizes).items()}
    exp = experiment(model=None, cohort={"size": 4}, engine={"workers": 0, "trainer": "vmap"})
    data = raysim.FederatedDataset.from_clients(clients)
    if sizes == [8] * 8:
        assert resolve(exp, dataset=data, model=lambda: Squeezed(5, 1)).choice.trainer == "vmap"
    else:
        with pytest.raises(raysim.ModelError, match=r"one number without an axis|have shape \(\)"):
            resolve(exp, dataset=data, model=lambda: Squeezed(5, 1))


class OfWholeBatch(nn.Module):
    """What a subclass does with the outputs of a layer depends on the whole batch."""

    seen: Tensor
    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop = nn.Linear(5, 3), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))


class LessTheMean(OfWholeBatch):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.drop(self.inner(x))
        return made - made.mean(0)


class TracksMean(OfWholeBatch):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x)
        if self.training:
            with torch.no_grad():
                self.seen.lerp_(made.mean(0), 0.1)
        return made


class CountsBatches(OfWholeBatch):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches.add_(1)
        made: Tensor = self.inner(x)
        return made


@pytest.mark.parametrize("module", [LessTheMean, TracksMean, CountsBatches])
def test_batches_of_a_module_that_takes_them_as_a_whole_are_not_divided(
    module: type[nn.Module], experiment: Callable[..., raysim.Experiment]
) -> None:
    divided = experiment(model=None, client={"batch_size": BATCH, "accumulate": 2})
    dataset = raysim.FederatedDataset.from_clients(make_clients([1, 1, 5, 7, 9, 3, 4, 8]))
    with pytest.raises(raysim.ModelError, match="accumulate divides a batch, but the module gives other outputs"):
        resolve(divided, dataset=dataset, model=module)
    resolve(divided.changed({"client.accumulate": 1}), dataset=dataset, model=module)


class InEvaluation(nn.Module):
    """Its norm keeps the statistics that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(5, 3), nn.BatchNorm1d(3)

    def train(self, mode: bool = True) -> InEvaluation:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.norm(self.inner(x))
        return made


def test_batches_of_a_module_whose_norm_stays_in_evaluation_are_divided(
    experiment: Callable[..., raysim.Experiment],
) -> None:
    divided = experiment(model=None, client={"batch_size": BATCH, "accumulate": 2})
    dataset = raysim.FederatedDataset.from_clients(make_clients([5] * 8))
    resolve(divided, dataset=dataset, model=InEvaluation)


def test_batches_of_a_module_with_masks_are_divided(experiment: Callable[..., raysim.Experiment]) -> None:
    divided = experiment(model=None, client={"batch_size": BATCH, "accumulate": 2})
    dataset = raysim.FederatedDataset.from_clients(make_clients([5] * 8))
    resolve(divided, dataset=dataset, model=lambda: nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5)))
    resolve(divided, dataset=dataset, model=lambda: nn.Sequential(nn.Linear(5, 3), nn.AlphaDropout(0.5)))
