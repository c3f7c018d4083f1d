"""A loss trains the module: its gradient reaches what the module returned. Tensors of inference mode may be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import raysim

Make = Callable[..., raysim.Experiment]

SCALE = nn.Parameter(torch.tensor(1.0))
with torch.inference_mode():
    CONSTANT = torch.ones(3)


class Own(nn.Module):
    """No standard layers one after another, so the trainer goes by autograd's graph."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(2, 3), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.linear(x)) * self.factor


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("module", [Own, lambda: nn.Linear(2, 3)])
@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, y: cross_entropy(outputs.detach(), y),
        lambda outputs, y: cross_entropy(outputs.detach(), y) * SCALE,
        lambda outputs, y: nn.Parameter(cross_entropy(outputs, y)),
    ],
)
def test_a_gradient_by_parameters_of_the_loss_s_own_is_none(loss: Any, module: Any, experiment: Make) -> None:
    clients = {f"c{i}": (torch.randn(6, 2), torch.arange(6) % 3) for i in range(4)}
    data = raysim.FederatedDataset.from_clients(clients)
    exp = experiment(model=None, cohort={"size": 2}, evaluation={})
    with pytest.raises(raysim.ModelError, match="The loss does not depend on the module's parameters"):
        raysim.rounds(exp, dataset=data, model=module, loss=loss)


def test_parts_may_read_tensors_of_inference_mode(experiment: Make) -> None:
    clients = {f"c{i}": (torch.randn(6, 2), torch.arange(6) % 3) for i in range(4)}
    data = raysim.FederatedDataset.from_clients(clients)
    exp = experiment(model=None, cohort={"size": 2}, evaluation={})
    weights = {"of_classes": CONSTANT}

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets) + (weights["of_classes"][0] - 1)

    got = [done.metrics["loss"] for done in raysim.rounds(exp, dataset=data, model=Own, loss=loss)]
    plain = [done.metrics["loss"] for done in raysim.rounds(exp, dataset=data, model=Own, loss=cross_entropy)]
    assert got == pytest.approx(plain)
