"""Training loss and accuracy are of the outputs that a local step made, whoever writes to their memory later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import raysim
from tests.support.small_data import make_clients

CLIENT: dict[str, Any] = {"batch_size": 6, "epochs": 2, "fill_last_batch": True, "optimizer": {"lr": 0.5}}

WAYS: dict[str, dict[str, Any]] = {
    "steps": {},
    "gradients": {"optimizer": {"lr": 0.5, "momentum": 0.5}},
    "pieces": {"accumulate": 2},
    "curved": {"personalisation": {"name": "maml", "alpha": 0.1}},
    "two points": {"personalisation": {"name": "apfl", "alpha": 0.5}},
}


class OwnOutputs(nn.Module):
    """What it makes is its outputs, or a copy of them."""

    def __init__(self, is_copied: bool) -> None:
        super().__init__()
        self.is_copied = is_copied

    def forward(self, x: Tensor) -> Tensor:
        made = self.made(x)
        return made.clone() if self.is_copied else made

    def made(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class OneForAll(OwnOutputs):
    """Says the same of every example, in a view of its parameter."""

    def __init__(self, is_copied: bool) -> None:
        super().__init__(is_copied)
        self.scores = nn.Parameter(torch.tensor([0.1, 0.2, -0.1]))

    def made(self, x: Tensor) -> Tensor:
        return self.scores.expand(len(x), 3)


class SameMemory(OwnOutputs):
    """Writes its outputs to the memory of those before."""

    def __init__(self, is_copied: bool) -> None:
        super().__init__(is_copied)
        self.a, self.outputs = nn.Linear(5, 3), torch.zeros(64, 3)

    def made(self, x: Tensor) -> Tensor:
        out = self.outputs[: len(x)].detach()
        made: Tensor = out.copy_(self.a(x))
        return made


def figures(module: Callable[[], nn.Module], client: dict[str, Any], **parts: Any) -> list[list[float]]:
    data = raysim.FederatedDataset.from_clients(train=make_clients([20, 14, 9, 31]), test=make_clients([4] * 4))
    base = {"rounds": 2, "cohort": {"size": 4}, "engine": {"workers": 0}, "evaluation": {"every": 2}}
    experiment = raysim.Experiment.model_validate({**base, "client": {**CLIENT, **client}})
    rounds = raysim.rounds(experiment, dataset=data, model=module, **parts)
    return [[done.metrics[name] or 0.0 for name in ("loss", "accuracy")] for done in rounds]


# Pieces of a batch are refused where the outputs of one piece change those of another.
CASES = [(OneForAll, way) for way in WAYS] + [(SameMemory, way) for way in WAYS if way != "pieces"]


@pytest.mark.parametrize(("module", "way"), CASES)
def test_outputs_are_scored_as_they_were_made(module: type[OwnOutputs], way: str) -> None:
    got, wanted = (figures(partial(module, is_copied), WAYS[way]) for is_copied in (False, True))
    assert got == [pytest.approx(each, rel=1e-6) for each in wanted]


def test_outputs_that_an_objective_writes_to_are_scored_as_they_were_made() -> None:
    def objective(is_in_place: bool) -> Any:
        def losses(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
            outputs = module(x)
            outputs = outputs.mul_(-1) if is_in_place else -outputs
            return nn.functional.cross_entropy(-outputs, y, reduction="none") + at.round

        return losses

    got, wanted = (figures(partial(nn.Linear, 5, 3), {}, objective=objective(one)) for one in (True, False))
    assert got == [pytest.approx(each, rel=1e-6) for each in wanted]
