"""Modules of one's own that share or hold tensors in ways that torch allows."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.models.model import bind, create

Make = Callable[..., raysim.Experiment]


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        return made


def test_tied_weights_train_as_by_torch() -> None:
    """One client, the whole of its examples, one step, server rate 1: the step of torch's SGD."""
    x, y = torch.randn(8, 5), torch.arange(8) % 3
    data = raysim.FederatedDataset.from_clients({"a": (x, y)})
    exp = raysim.Experiment.model_validate(
        {
            "name": "tied",
            "rounds": 1,
            "engine": {"workers": 0},
            "cohort": {"size": 1},
            "client": {"optimizer": {"lr": 0.5}, "batch_size": "full", "epochs": 1},
        }
    )
    torch.manual_seed(1)
    module = Tied()
    start = {name: value.detach().clone() for name, value in module.named_parameters()}
    (only,) = raysim.rounds(exp, model=Tied, dataset=data, params=start)
    made = only.params
    nn.functional.cross_entropy(module(x), y).backward()
    torch.optim.SGD(module.parameters(), 0.5).step()
    for name, value in module.named_parameters():
        torch.testing.assert_close(made[name], value.detach())


class FollowedOutputs(nn.Module):
    """Batch norm, whose buffers autograd saves, and a mean of outputs, to which forward writes later."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(torch.tanh(self.norm(self.a(x))))
        mean = self.get_buffer("mean")
        if self.training:
            with torch.no_grad():
                mean.mul_(0.8).add_(0.2 * made.mean(0))
        return made - mean


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded"])
def test_forward_writes_to_a_buffer_after_batch_norm(trainer: str) -> None:
    x, y = torch.randn(8, 5), torch.arange(8) % 3
    data = raysim.FederatedDataset.from_clients({"a": (x, y)})
    exp = raysim.Experiment.model_validate(
        {
            "name": "followed",
            "rounds": 1,
            "engine": {"workers": 0, "trainer": trainer},
            "cohort": {"size": 1},
            "client": {"optimizer": {"lr": 0.5}, "batch_size": 8, "local_steps": 3},
        }
    )
    torch.manual_seed(1)
    module = FollowedOutputs()
    start = {name: value.detach().clone() for name, value in module.named_parameters()}
    objective: dict[str, Any] = {
        "objective": lambda module, x, y, at: nn.functional.cross_entropy(module(x), y, reduction="none")
    }
    for parts in ({}, objective):
        (only,) = raysim.rounds(exp, model=FollowedOutputs, dataset=data, params=start, **parts)
        made = only.params
        own = copy.deepcopy(module)
        optimizer = torch.optim.SGD(own.parameters(), 0.5)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(own(x), y).backward()
            optimizer.step()
        for name, value in [*own.named_parameters(), *own.named_buffers()]:
            torch.testing.assert_close(made[name], value.detach(), atol=1e-5, rtol=1e-5)


def test_a_buffer_that_is_registered_twice_stays_one() -> None:
    def factory() -> nn.Module:
        module = nn.Sequential(nn.BatchNorm1d(5), nn.BatchNorm1d(5))
        module[1].running_mean = module[0].running_mean
        return module

    model, weights = create(factory, 0, torch.float32)
    module = bind(model, weights, torch.device("cpu"))
    model.buffers.views(weights.buffers)["0.running_mean"].fill_(3.0)
    for layer in (0, 1):
        assert module.get_buffer(f"{layer}.running_mean").tolist() == [3.0] * 5


def test_whole_numbers_that_are_frozen_stay_whole() -> None:
    def factory() -> nn.Module:
        module = nn.Linear(5, 3)
        module.register_parameter("order", nn.Parameter(torch.tensor([2**24 + 1]), requires_grad=False))
        return module

    model, weights = create(factory, 0, torch.float32)
    assert bind(model, weights, torch.device("cpu")).get_parameter("order").tolist() == [2**24 + 1]
