"""Modules of one's own that share or hold tensors in ways that torch allows."""

from __future__ import annotations

from collections.abc import Callable

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
