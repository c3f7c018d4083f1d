"""A forward that looks like a line of layers, and is none on a batch, is left to autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import raysim
from raysim.client.trainers import recognised_by_trial
from raysim.client.trainers.recognise import Recognised, recognise
from raysim.client.trainers.recognised_by_trial import recognised_on

Told = Callable[[Any, Any], Any]

X = torch.arange(72.0).sin().view(2, 1, 6, 6)


class Written(nn.Module):
    """A forward of one's own; `told` is what it does with its layers."""

    def __init__(self, told: Told) -> None:
        super().__init__()
        self.told = told
        self.conv, self.drop, self.norm = nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.LayerNorm(8)
        self.one, self.other, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.norm(torch.max_pool2d(torch.relu(self.conv(x)), 2).flatten(1))
        return self.drop(self.out(self.told(self, x)))


class Halves(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        return made * 0.5 if function is functional.linear else made


def asks_for_the_class(own: Any, x: Any) -> Any:
    return (own.one if type(x) is Tensor else own.other)(x)


def borrows_weights(own: Any, x: Any) -> Any:
    return functional_call(own.one, dict(own.other.named_parameters()), (x,))


def borrows_attributes(own: Any, x: Any) -> Any:
    before, own.one._parameters["weight"] = own.one.weight, own.other.weight
    made = own.one(x)
    own.one._parameters["weight"] = before
    return made


def saves_less(own: Any, x: Any) -> Any:
    with saved_tensors_hooks(lambda saved: saved * 0.5, lambda saved: saved):
        return torch.tanh(own.one(x))


def in_a_mode(own: Any, x: Any) -> Any:
    with Halves():
        return own.one(x)


def fails_on_a_batch(own: Any, x: Any) -> Any:
    if type(x) is Tensor:
        raise ValueError
    return own.one(x)


OTHERWISE = [asks_for_the_class, borrows_weights, borrows_attributes, saves_less, in_a_mode]


@pytest.mark.parametrize("told", OTHERWISE)
def test_a_forward_that_is_no_line_on_a_batch_is_not_recognised(told: Told) -> None:
    module = Written(told)
    assert isinstance(recognise(module), Recognised)
    said = recognised_on(module, X)
    assert said == "Written.forward gives other outputs or gradients on a batch than its layers one after another"


@pytest.mark.parametrize("told", [lambda own, x: torch.tanh(own.one(x)), fails_on_a_batch])
def test_a_line_is_recognised_and_left_as_it_was(told: Told) -> None:
    module = Written(told)
    state, modes = torch.get_rng_state(), [child.training for child in module.modules()]
    assert isinstance(recognised_on(module, X), Recognised)
    assert torch.equal(torch.get_rng_state(), state)
    assert [child.training for child in module.modules()] == modes
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize("told", OTHERWISE)
def test_such_a_module_trains_as_by_autograd(told: Told) -> None:
    rng = np.random.default_rng(0)
    train = {str(i): (rng.normal(size=(8, 1, 6, 6)), rng.integers(0, 3, 8)) for i in range(3)}

    def trained(trainer: str) -> dict[str, Tensor]:
        experiment = raysim.Experiment.model_validate(
            {
                "name": "line",
                "rounds": 2,
                "client": {"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 4},
                "cohort": {"size": 3},
                "engine": {"trainer": trainer, "dtype": "float64"},
            }
        )
        data = raysim.FederatedDataset.from_clients(train)
        *_, last = raysim.rounds(experiment, dataset=data, model=lambda: Written(told), executor="local")
        return dict(last.params)

    by_autograd = trained("one_by_one")
    for name, value in trained("auto").items():
        torch.testing.assert_close(value, by_autograd[name], rtol=1e-9, atol=1e-12)


def test_a_trial_for_which_memory_is_lacking_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the last digits of a run would depend on what else is in memory."""

    def lacking(*_: object) -> bool:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(recognised_by_trial, "_is_alike", lacking)
    with pytest.raises(RuntimeError, match="allocate memory"):
        recognised_on(Written(lambda own, x: own.one(x)), X)
