"""Code that a script gives a part between two rounds is warned of, once."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from torch import Tensor, nn
from torch.nn import functional

import raysim

Make = Callable[..., raysim.Experiment]


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)
        return outputs


def doubled(self: Body, x: Tensor) -> Tensor:
    outputs: Tensor = 2 * self.layer(x)
    return outputs


class Loss:
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")


def halved(self: Loss, outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * functional.cross_entropy(outputs, targets, reduction="none")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "between two rounds" in record.getMessage()]


def test_other_code_of_a_layer_and_of_a_loss_is_told_once(
    dataset: raysim.FederatedDataset,
    experiment: Make,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = raysim.rounds(
        experiment(rounds=4, engine={"workers": 0}), model=lambda: nn.Sequential(Body()), loss=Loss(), dataset=dataset
    )
    with caplog.at_level(logging.WARNING, "raysim"):
        next(rounds)
        next(rounds)
        assert not warnings(caplog)
        monkeypatch.setattr(Body, "forward", doubled)
        monkeypatch.setattr(Loss, "__call__", halved)
        assert len(list(rounds)) == 2
    (said,) = warnings(caplog)
    assert said.startswith("the code of model= and loss= was changed between two rounds. A run takes code as it is")


def test_a_run_is_left_alone_otherwise(
    dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "raysim"):
        list(raysim.rounds(experiment(engine={"workers": 0}), model=Body, loss=Loss(), dataset=dataset))
    assert not warnings(caplog)
