"""Whole rounds on a card, on fake tensors: what is trained and summed lies on the card, what is stepped on the host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim import card
from raysim.algorithm.broadcast import Broadcast
from raysim.engine.in_process import InProcess
from raysim.engine.job import Job
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds import kept_updates, training
from raysim.evaluation import personalised, scores
from raysim.server.state import ServerState
from raysim.server.sums import Sums
from tests.support.fake_card import FakeCard, fake_card

Make = Callable[..., raysim.Experiment]


@pytest.fixture
def data() -> raysim.FederatedDataset:
    draw = np.random.default_rng(0)

    def clients(sizes: list[int]) -> dict[str, Any]:
        return {f"{i}": (draw.standard_normal((n, 6)), draw.integers(0, 3, n)) for i, n in enumerate(sizes)}

    return raysim.FederatedDataset.from_clients(train=clients([5, 4, 6, 3, 7]), test=clients([6, 3]))


def planned(experiment: raysim.Experiment, data: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch) -> Plan:
    with monkeypatch.context() as there:
        there.setattr(card, "is_there", lambda: True)
        return resolve(experiment, dataset=data)


class Round(NamedTuple):
    """A round's sums, the state behind it and the names of its metrics."""

    sums: list[Sums]
    after: ServerState
    metrics: set[str]


def outline(value: Any) -> Any:
    """Shapes, dtypes and devices of all tensors in a record: fake tensors have no numbers."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.device.type
    if is_dataclass(value):
        return {field.name: outline(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: outline(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [outline(one) for one in value]
    return type(value)


def one_round(plan: Plan, on_card: FakeCard | None = None) -> tuple[Round, Counter[str]]:
    """A round as the loop carries it out; also what made the host wait while clients trained."""
    executor, algorithm = InProcess(plan), plan.algorithm()
    state, cohorts = plan.initial_state(), plan.cohorts()
    seen = Counter[str]() if on_card is None else on_card.waits
    seen.clear()
    begun = training.begin(plan, algorithm, cohorts, executor, state, plan.keeps_updates)
    begun, outcomes = training.wait(plan, algorithm, cohorts, executor, state, begun)
    waits = seen.copy()
    sums, aggregate = [outcome.sums for outcome in outcomes], None
    if (rule := plan.experiment.server.rule) is not None:
        sums[-1], aggregate = kept_updates.aggregate(
            plan, executor, rule, sums[-1], outcomes[-1].kept, 0, begun.selected.positions
        )
    after, metrics = algorithm.step(state, sums, aggregate)
    return Round(sums, after, set(metrics)), waits


def doubled(at: raysim.TransformAt) -> torch.Tensor:
    """A transform of one's own that draws."""
    noise = torch.randn(at.delta.shape, generator=at.generator, device=at.delta.device)
    return at.layout.map(lambda _, piece: 2 * piece, at.delta + noise)


def carried_out(
    made: raysim.Experiment, data: raysim.FederatedDataset, patch: pytest.MonkeyPatch, states: Path | None = None
) -> Counter[str]:
    """A round on the card, whose sums and state must be laid out as those of a round without one."""
    plan = replace(planned(made, data, patch), states=states)
    with fake_card() as on_card:
        there, waits = one_round(plan, on_card)
    here, _ = one_round(replace(resolve(made, dataset=data), states=states and states / "here"))
    assert outline(there.sums) == outline(here.sums)
    assert outline(there.after) == outline(here.after)
    assert there.metrics == here.metrics
    return waits


OPTIMIZERS = ("momentum", "adagrad", "adam", "yogi", "lamb", "lars", "normalized")
SERVERS: list[dict[str, Any]] = [
    *({"optimizer": {"name": name}} for name in OPTIMIZERS),
    {"aggregator": {"name": "fednova"}},
    {"weighting": "ida"},
    {"aggregator": {"name": "trimmed_mean", "k": 1}},
    {"aggregator": {"name": "median"}},
    {"aggregator": {"name": "krum", "f": 1}},
    {"aggregator": {"name": "geometric_median"}},
    {"clip": {"fixed": 1.0}, "zeroing": {}},
    {"clip": {"quantile": 0.5}, "glad": {}},
    {"diagnostics": {"labels": True, "cosine": True}},
]
CORRECTIONS: list[dict[str, Any]] = [
    {"name": "prox", "mu": 0.1},
    *({"name": name} for name in ("scaffold", "scaffold_m", "mime", "mimelite")),
    {"name": "feddyn", "mu": 0.1},
    {"name": "adabest", "mu": 0.1, "beta": 0.9},
    {"name": "feddane", "mu": 0.1},
]
CLIENTS: list[dict[str, Any]] = [
    {"adversary": {"name": "noise", "clients": 0.5, "std": 1.0}},
    {"adversary": {"name": "sign_flip", "clients": 0.5}},
    {"adversary": {"name": "label_flip", "clients": 0.5}},
]


@pytest.mark.parametrize("server", SERVERS, ids=str)
def test_a_server_of_any_kind_steps_from_sums_of_a_card(
    experiment: Make, data: raysim.FederatedDataset, server: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_out(experiment(server=server, cohort={"size": 5}), data, monkeypatch)


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda given: given["name"])
def test_a_round_with_a_correction(
    experiment: Make, data: raysim.FederatedDataset, correction: dict[str, Any], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    client = {"correction": correction, "batch_size": 4, "local_steps": 2}
    carried_out(experiment(client=client, cohort={"size": 3}), data, monkeypatch, tmp_path)


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_a_round_with_what_changes_updates(
    experiment: Make, data: raysim.FederatedDataset, client: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_out(experiment(cohort={"size": 3}, **client), data, monkeypatch)


def test_waits_of_a_round_do_not_grow_with_its_local_steps(
    experiment: Make, data: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (
        carried_out(experiment(client={"epochs": epochs}, cohort={"size": 3}), data, monkeypatch) for epochs in (1, 3)
    )
    assert few == many
    # Of each client only whether its update is finite, and its norm, are read.
    assert few["read"] <= 2 * 3


@pytest.mark.parametrize("where", ["host", "device"])
def test_an_evaluation_waits_once_a_unit(
    experiment: Make, data: raysim.FederatedDataset, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = experiment(engine={"workers": 0, "examples": where}, cohort={"size": 3}, evaluation={"batch_size": 2})
    plan = planned(made, data, monkeypatch)
    units = scores.plan("train", [(position, 0, size) for position, size in enumerate((5, 4, 6, 3, 7))])
    state = plan.initial_state()
    with fake_card() as on_card:
        executor = InProcess(plan)
        job = Job("evaluate", Broadcast(0, state.weights, 0.0), units, [1.0] * len(units))
        executor.result(executor.submit(job))
        on_card.waits.clear()
        found = executor.result(executor.submit(job)).value
        waits = on_card.waits.copy()
    assert isinstance(found, scores.ClientScores)
    assert found.examples.tolist() == [5, 4, 6, 3, 7]
    # Losses and hits come down; the three vectors of the model go up, and the examples or their places.
    assert waits["read"] == 0
    assert waits["down"] == 2
    assert waits["up"] == {"host": 5, "device": 4}[where]


def test_clients_are_tuned_and_scored_on_the_card(
    experiment: Make, data: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(experiment(evaluation={"fine_tuning": {"steps": 3}}, cohort={"size": 3}), data, monkeypatch)
    units = personalised.plan("test", data.split("test"), data.train, [0, 1], "evaluation.fine_tuning")
    with fake_card():
        executor = InProcess(plan)
        sent = Broadcast(0, plan.initial.clone(), 0.1)
        found = executor.result(executor.submit(Job("fine_tune", sent, units, [1.0]))).value
    assert isinstance(found, personalised.BeforeAndAfter)
    assert found.after.examples.tolist() == [6, 3]


def test_a_module_with_running_means_and_a_transform_of_ones_own(
    experiment: Make, data: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        there.setattr(card, "is_there", lambda: True)
        made = experiment(cohort={"size": 3}, client={"batch_size": 3, "fill_last_batch": True})
        module = lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))  # noqa: E731
        plan = resolve(made, dataset=data, model=module, transform=lambda _: raysim.Transform(doubled))
    with fake_card() as on_card:
        one_round(plan, on_card)
