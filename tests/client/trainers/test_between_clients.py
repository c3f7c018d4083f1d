"""A client's training does not depend on whom the same worker has trained before."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import raysim
from raysim.algorithm.broadcast import Broadcast
from raysim.client import local_training
from raysim.client.local_training import ClientFailure
from raysim.data.on_device import Examples
from raysim.engine.plan.resolve import resolve
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.pool import Pool
from raysim.evaluation.scores import ClientScores
from raysim.server.sums import Sums

Make = Callable[..., raysim.Experiment]
Train = Callable[..., Tensor]


class Own(nn.Module):
    """Its outputs depend on what it holds; `changes` is called in training with batches of a whole size."""

    mask: Tensor
    number: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("mask", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("number", torch.zeros((), dtype=torch.int32))
        self.kept, self.array = torch.zeros(2), np.zeros(2)
        self.several: dict[str, Any] = {"list": [0.0], "record": SimpleNamespace(value=0.0)}

    def forward(self, x: Tensor) -> Tensor:
        held = self.mask.sum() + self.number + self.kept.sum() + self.array.sum()
        held = held + self.several["list"][-1] + self.several["record"].value
        outputs: Tensor = self.layer(x) * (1 + 0.1 * held)
        if self.training and len(x) == 4:
            self.changes()
        return outputs

    def changes(self) -> None:
        """What is to be undone."""


class Mask(Own):
    def changes(self) -> None:
        self.mask[0] = True


class RecordedMask(Own):
    """Its local steps are recorded: no forward is called in them."""

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x) * (1 + self.mask.sum())
        if self.training and len(x) == 4:
            self.mask.fill_(True)
        return outputs


class OtherMask(Own):
    def changes(self) -> None:
        self.mask.data = torch.ones(2, dtype=torch.bool)


class Number(Own):
    def changes(self) -> None:
        self.number += 1


class Kept(Own):
    def changes(self) -> None:
        self.kept.data[0] += 1


class Array(Own):
    def changes(self) -> None:
        self.array += 1


class Several(Own):
    def changes(self) -> None:
        self.several["list"].append(1.0)
        self.several["record"].value += 1


class Attribute(Own):
    def changes(self) -> None:
        self.several = {"list": [1.0], "record": SimpleNamespace(value=1.0)}


class Generator(Own):
    """Draws, but nothing that the first examples would tell."""

    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(1)

    def changes(self) -> None:
        self.kept.fill_(self.rng.random())


def losses(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(module(x), y, reduction="none")


class Scored(nn.Linear):
    """Learns in evaluation, from the sixth batch on."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += not self.training
        return super().forward(x) * (1.0 if self.calls < 6 else -1.0)


def test_scores_of_a_unit_do_not_depend_on_the_units_before(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(model=None, engine={"workers": 0}, evaluation={"every": 1, "batch_size": 40})
    plan = resolve(exp, dataset=dataset, model=Scored)
    pool, weights = Pool(plan, torch.device("cpu"), "a worker", ExampleMemory(1.0)), plan.initial
    broadcast = Broadcast(0, weights, 0.1)
    unit = ("test", tuple((position, 0, 25) for position in range(4)))
    first, again = (cast(ClientScores, pool.run("evaluate", broadcast, 0, unit, None)) for _ in range(2))
    assert np.array_equal(first.loss, again.loss)


class Counting(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * (1.0 if self.calls < 12 else 2.0)


def test_updates_of_a_chunk_with_a_client_axis_do_not_depend_on_the_chunks_before(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    exp = experiment(model=None, engine={"workers": 0, "trainer": "vmap"})
    plan = resolve(exp, dataset=dataset, model=Counting)
    pool, broadcast = Pool(plan, torch.device("cpu"), "a worker", ExampleMemory(1.0)), Broadcast(0, plan.initial, 0.1)
    first, *_, last = (cast(Sums, pool.run("train", broadcast, 0, (7, 8, 9), None)) for _ in range(3))
    assert torch.equal(first.delta, last.delta)


def other_attribute(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    seen = getattr(module, "seen", 0)
    module.seen = seen + (len(x) == 4)
    return losses(module, x, y) * (1 + 0.1 * seen)


def hook(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    if len(x) == 4:
        module.layer.register_forward_hook(lambda layer, given, made: 1.1 * made)
    return losses(module, x, y)


def hook_of_a_parameter(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    if len(x) == 4:
        module.layer.weight.register_hook(lambda gradient: 1.1 * gradient)
    return losses(module, x, y)


def mode(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    if len(x) == 4:
        module.eval()
    return losses(module, x, y) * (1.0 if module.training else 2.0)


def gradients(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    weight, each = module.layer.weight, losses(module, x, y)
    if len(x) == 4:
        losses(module, x, y).sum().backward()
    return each * (1 if weight.grad is None else 1 + weight.grad.norm())


def mask(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    if len(x) == 4:
        module.mask[0] = True
    return losses(module, x, y)


@pytest.fixture
def trained(experiment: Make, dataset: raysim.FederatedDataset) -> Train:
    """The update of the last of some clients; the first has 3 examples, so one batch that is not of 4."""
    exp = experiment(model=None, client={"optimizer": {"lr": 0.1}, "batch_size": 4}, engine={"workers": 0})

    def train(positions: list[int], **parts: Any) -> Tensor:
        plan = resolve(exp, dataset=dataset, **parts)
        weights, clients = plan.initial, plan.experiment.client
        pool = Pool(plan, torch.device("cpu"), "a worker", ExampleMemory(1.0))
        members = local_training.members(Examples(dataset), positions, clients, 0, 0, weights.params)
        deltas = [
            each.updates.delta[-1].clone()
            for each in local_training.train(pool._trainer, weights, members, 0.1, plan.model.params)
        ]
        return deltas[-1]

    return train


@pytest.mark.parametrize("model", [Mask, RecordedMask, OtherMask, Number, Kept, Array, Several, Attribute, Generator])
def test_what_a_module_holds_is_put_back_for_each_client(model: type[Own], trained: Train) -> None:
    assert torch.equal(trained([1, 2, 9], model=model), trained([9], model=model))
    assert not torch.equal(trained([9], model=model), trained([9], model=Own))


@pytest.mark.parametrize("objective", [other_attribute, hook, hook_of_a_parameter, mode, gradients, mask])
def test_what_an_objective_does_to_its_module_is_undone_for_each_client(objective: Any, trained: Train) -> None:
    assert torch.equal(trained([1, 2, 9], model=Own, objective=objective), trained([9], model=Own, objective=objective))


@pytest.mark.parametrize(
    "method",
    [
        {"correction": {"name": "mime", "base": "sgd"}},
        {"personalisation": {"name": "apfl", "alpha": 0.5, "split": "train"}},
        {"personalisation": {"name": "maml", "alpha": 0.1, "hessian": "none", "split": "train"}},
    ],
    ids=["mime", "apfl", "maml"],
)
def test_what_two_modules_of_a_client_record_does_not_depend_on_the_clients_before(
    method: dict[str, Any], experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    """Client 6 has whole batches only; client 10 has a short one too, which autograd takes."""
    client = {"optimizer": {"lr": 0.1}, "batch_size": 5, **method}
    exp = experiment(client=client, engine={"workers": 0, "trainer": "recorded", "chunk_size": 1})
    plan = resolve(exp, dataset=dataset)
    weights, training = plan.initial, plan.experiment.client
    made: list[tuple[Tensor, list[set[int]]]] = []
    for before in ((), (6,)):
        pool = Pool(plan, torch.device("cpu"), "a worker", ExampleMemory(1.0))
        for position in (*before, 10):
            members = local_training.members(Examples(dataset), (position,), training, 0, 0, weights.params)
            members = members.with_each(lambda client: replace(client, own=weights.params))
            (trained,) = local_training.train(pool._trainer, weights, members, 0.1, plan.model.params)
        # Beneath what compares its steps.
        modules = cast(Any, getattr(pool._trainer, "_trainer", pool._trainer))._modules
        made.append((trained.updates.delta, [set(each._recorded._steps) for each in modules]))
    (alone, lengths), (behind, _) = made
    assert torch.equal(alone, behind)
    assert lengths == [{3, 5}] * 2


def another_weight(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    if len(x) == 4:
        module.layer.weight = nn.Parameter(module.layer.weight.detach().clone())
    return losses(module, x, y)


def another_buffer(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    if len(x) == 4:
        module.number = module.number + 1
    return losses(module, x, y)


def another_memory(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    if len(x) == 4:
        module.layer.weight.data = 2 * module.layer.weight.data
    return losses(module, x, y)


@pytest.mark.parametrize(
    ("objective", "name"), [(another_weight, "weight"), (another_buffer, "number"), (another_memory, "weight")]
)
def test_another_tensor_in_the_place_of_the_module_s_own_is_an_error(objective: Any, name: str, trained: Train) -> None:
    with pytest.raises(ClientFailure) as failed:
        trained([9], model=Own, objective=objective)
    assert f"another tensor in the place of {name!r}" in str(failed.value.__cause__)


def frozen() -> nn.Module:
    module = Own()
    module.base = nn.Parameter(torch.zeros(2), requires_grad=False)
    return module


def writes_to_the_base(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    if len(x) == 4:
        with torch.no_grad():
            module.base.add_(1)
    return losses(module, x, y)


def test_an_objective_that_writes_to_a_frozen_parameter_is_an_error(trained: Train) -> None:
    with pytest.raises(ClientFailure) as failed:
        trained([9], model=frozen, objective=writes_to_the_base)
    assert "frozen parameter" in str(failed.value.__cause__)
