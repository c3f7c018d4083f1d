"""Small clients that are trained one after another are scored and measured together: the same numbers and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim import FederatedDataset
from raysim.arrays import Int64s
from raysim.client import local_training
from raysim.client.chunk_clients import ChunkClients
from raysim.client.local_training import ClientFailure, Trained
from raysim.client.section import ClientSection
from raysim.client.trainer import Client, Updates
from raysim.client.trainers import client_by_client
from raysim.client.trainers.class_scores import Scorer
from raysim.client.trainers.client_by_client import LocalEnd
from raysim.client.trainers.construction import make
from raysim.client.trainers.scores import Scores
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.data.on_device import Examples
from raysim.models.layout import Layout
from raysim.models.model import Weights, create
from raysim.models.task import Task, task_for
from tests.support.executors import bits
from tests.support.small_data import make_clients

SIZES = [9, 5, 12, 8, 3]


def normed() -> nn.Module:
    """With buffers, and a counter."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def trained(prepared: Any = None, loss: Any = None, windows: Any = ()) -> Iterator[Trained]:
    """What local training yields for five clients."""
    data = FederatedDataset.from_clients(train=make_clients(SIZES))
    section = ClientSection.model_validate({"batch_size": 3, "epochs": 2})
    model, weights = create(normed, 0, torch.float32)
    made = make(TrainerChoice.of_size("one_by_one", 5), model, weights, task_for(3, loss), section, "float32")
    members = local_training.members(Examples(data), tuple(range(5)), section, 0, 3, weights.params)
    if windows:
        members = members.with_each(lambda client: replace(client, windows=windows))
    for one in local_training.train(made, weights, members, 0.1, model.params, prepared):
        # A correction may write to them.
        assert not any(each.is_inference() for each in vars(one.updates).values() if isinstance(each, Tensor))
        kept: dict[str, Any] = {name: one.clone() for name, one in vars(one.updates).items() if isinstance(one, Tensor)}
        yield Trained(one.clients, replace(one.updates, **kept), one.squared_norms, one.finite)


def test_numbers_are_those_of_each_client_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    together = [*trained()]
    monkeypatch.setattr(local_training, "GATHERED", 0)
    apart = [*trained()]
    assert [len(one.clients) for one in together] == [5]
    assert [len(one.clients) for one in apart] == [1] * 5
    for field in fields(Updates):
        got, each = getattr(together[0].updates, field.name), [getattr(one.updates, field.name) for one in apart]
        assert each == [None] * 5 if got is None else np.array_equal(got, np.concatenate(each)), field.name
    assert len(set(together[0].updates.delta[:, 0].tolist())) == 5
    assert torch.equal(together[0].squared_norms, torch.cat([one.squared_norms for one in apart]))
    assert together[0].finite.tolist() == [True] * 5


def test_no_more_are_held_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    _, weights = create(normed, 0, torch.float32)
    one = len(weights.params) + len(weights.buffers)
    monkeypatch.setattr(local_training, "GATHERED", 2 * one + 1)
    assert [len(each.clients) for each in trained()] == [2, 2, 1]


def test_what_a_correction_gives_is_held_for_one_client_at_a_time() -> None:
    asked: list[int] = []

    def prepared(client: Client) -> Client:
        asked.append(client.position)
        return client

    order = [(tuple(one.clients.positions), len(asked)) for one in trained(prepared)]
    assert order == [((0,), 1), ((1,), 2), ((2,), 3), ((3,), 4), ((4,), 5)]


def test_means_over_windows_are_held_for_one_client_at_a_time() -> None:
    assert [len(one.clients) for one in trained(windows=((0, 1),))] == [1] * 5


def test_the_client_that_failed_is_named_behind_those_before_it() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        # Behind three and two batches, in each of two epochs.
        if len(calls) >= 2 * (3 + 2):
            raise ValueError("not this one")
        calls.append(len(targets))
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    calls: list[int] = []
    stream = trained(loss=loss)
    assert next(stream).clients.positions.tolist() == [0, 1]
    with pytest.raises(ClientFailure) as raised:
        next(stream)
    assert (raised.value.position, raised.value.others) == (2, 0)


def test_outputs_of_ones_own_loss_need_not_begin_with_the_examples() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.T - targets[:, None]).square().mean(1)

    class Turned(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).T

    draw = np.random.default_rng(0)
    sizes = [3, 5, 4]
    data = FederatedDataset.from_clients(
        train={str(i): (draw.normal(size=(n, 5)), draw.normal(size=n)) for i, n in enumerate(sizes)}
    )
    section = ClientSection.model_validate({"batch_size": 4})
    model, weights = create(lambda: Turned(5, 2), 0, torch.float32)
    made = make(TrainerChoice.of_size("one_by_one", 3), model, weights, task_for(None, loss), section, "float32")
    members = local_training.members(Examples(data), (0, 1, 2), section, 0, 3, weights.params)
    (got,) = local_training.train(made, weights, members, 0.1, model.params)
    assert got.updates.seen.tolist() == sizes
    assert bool((got.updates.loss > 0).all())


def test_an_error_of_scores_is_of_one_of_the_clients_that_were_scored() -> None:
    def correct(outputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("not these")

    data = FederatedDataset.from_clients(train=make_clients(SIZES))
    section = ClientSection.model_validate({"batch_size": 3})
    model, weights = create(normed, 0, torch.float32)
    task = replace(task_for(3, None), correct=correct)
    made = make(TrainerChoice.of_size("one_by_one", 5), model, weights, task, section, "float32")
    members = local_training.members(Examples(data), (1, 0, 4), section, 0, 3, weights.params)
    with pytest.raises(ClientFailure) as raised:
        [*local_training.train(made, weights, members, 0.1, model.params)]
    assert (raised.value.position, raised.value.others) == (1, 2)
    assert str(raised.value.__cause__) == "not these"


def test_no_more_targets_are_held_than_scores_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    together = [*trained()]
    held: list[int] = []

    class Watching(Scores):
        @classmethod
        def of_clients(cls, task: Task, targets: Tensor, visits: Int64s, scorer: Scorer | None = None) -> Scores:
            held.append(len(targets))
            return Scores.of_clients(task, targets, visits, scorer)

    monkeypatch.setattr(client_by_client, "MOST_KEPT", 40)
    monkeypatch.setattr(client_by_client, "Scores", Watching)
    (again,) = trained()
    # Two epochs of 9, 5, 12, 8 and 3 examples.
    assert held == [28, 40, 6]
    assert torch.equal(again.updates.loss, together[0].updates.loss)
    assert torch.equal(again.updates.correct, together[0].updates.correct)
    assert torch.equal(again.updates.delta, together[0].updates.delta)


class Reusing:
    """Writes what some rules ask for to the same memory for each client."""

    trains_together = False

    def __init__(self) -> None:
        self._rows = tuple(torch.zeros(1, 4) for _ in range(4))

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        return client_by_client.trained(task_for(3, None), clients, self._train_one)

    def _train_one(self, client: Client, y: Tensor, scores: Scores) -> LocalEnd:
        for row in self._rows:
            row.fill_(client.position)
        delta, gradients, inverses, own = self._rows
        scores.keep(nn.functional.one_hot(y, 3).float() * client.position)
        none = torch.empty(1, 0)
        return LocalEnd(delta, none, none.long(), gradients, inverses, own, (own.expand(2, 4),))


def test_everything_that_a_rule_asks_for_is_of_its_client() -> None:
    data = FederatedDataset.from_clients(train=make_clients(SIZES))
    section = ClientSection.model_validate({"batch_size": 3})
    members: ChunkClients = local_training.members(Examples(data), (4, 0, 3), section, 0, 3, torch.zeros(4))
    weights = Weights(torch.zeros(4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    layout = Layout.of([("weight", torch.zeros(4))])
    (got,) = local_training.train(Reusing(), weights, members, 0.1, layout)
    updates = got.updates
    for each in (updates.delta, updates.gradients, updates.inverses, updates.own):
        assert each is not None
        assert each[:, 0].tolist() == [4, 0, 3]
    assert updates.samples is not None
    assert [float(one[0, 0]) for one in updates.samples] == [4, 0, 3]
    assert updates.seen.tolist() == [SIZES[k] for k in (4, 0, 3)]
    # Of 3 classes a score of s for the right one, and 0 for the others.
    losses = [SIZES[k] * np.log(1 + 2 * np.exp(-k)) for k in (4, 0, 3)]
    assert updates.loss.tolist() == pytest.approx(losses, rel=1e-6)
    assert got.squared_norms[:, 0].tolist() == pytest.approx([64, 0, 36])


RULES: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "compressed": {"client": {"batch_size": 4, "compression": {"name": "top_k", "fraction": 0.3}}},
    "fednova": {"server": {"aggregator": {"name": "fednova"}}},
    "glad": {"server": {"glad": {"beta": 0.9, "gamma": 0.02, "scope": "group"}}},
    "median": {"server": {"aggregator": {"name": "median"}}},
    "clipped": {"server": {"clip": {"initial": 0.5, "quantile": 0.5, "lr": 0.2}}},
}


@pytest.mark.parametrize("rule", RULES)
def test_the_bits_of_a_run_do_not_depend_on_who_is_measured_together(
    rule: str, monkeypatch: pytest.MonkeyPatch, experiment: Callable[..., raysim.Experiment]
) -> None:
    engine = {"workers": 0, "trainer": "one_by_one", "chunk_size": 3, "dtype": "float64"}
    run = experiment(cohort={"size": 5}, engine=engine, **RULES[rule])
    # Remainders of two or three examples: batch norm takes no single one.
    data = FederatedDataset.from_clients(train=make_clients([8, 6, 12, 7, 3, 11, 20]))
    together = [bits(done) for done in raysim.rounds(run, dataset=data, model=normed)]
    monkeypatch.setattr(local_training, "GATHERED", 0)
    assert [bits(done) for done in raysim.rounds(run, dataset=data, model=normed)] == together
