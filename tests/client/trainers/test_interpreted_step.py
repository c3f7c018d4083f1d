"""Interpreted steps as functions of batches: several in one call where nothing is to be done between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import raysim
from raysim.client.trainers import bound_module, compared_trainer
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.recording.interpreted_step import InterpretedStep
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.client.trainers.recording.resized import Sized
from raysim.models.model import create
from raysim.models.task import task_for

TASK = task_for(4, None)


class InPlace(nn.Module):
    """Writes over its hidden numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b((self.a(x) * 1).mul_(2).tanh_())
        return made


MODULES: Mapping[str, Callable[[], nn.Module]] = {
    "tanh": lambda: nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Linear(12, 4)),
    "softmax": lambda: nn.Sequential(nn.Linear(6, 12), nn.Softmax(1), nn.Linear(12, 4)),
    "in place": InPlace,
    "dropout": lambda: nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.3), nn.Linear(12, 4)),
}


def test_an_index_that_torch_takes_ends_the_step_too() -> None:
    x, y, outputs = torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), torch.zeros(1, 3)
    interpreter = Mock(return_value=False, dtype=torch.float32, pauses=False, repeated=Mock(return_value=1))
    sized = Sized(interpreter, (x, y), (False, False), [], [outputs.shape], Mock())
    by_torch = Mock(return_value=(outputs, None))
    step = InterpretedStep(sized, by_torch)
    with pytest.raises(IndexError, match="out of its range"):
        step(x, y, 1.0)
    several = torch.arange(6.0).view(3, 2)
    with pytest.raises(IndexError, match="out of its range"):
        step.of_several(several, torch.arange(3), 0.5)
    # The second batch is the one that was not carried out.
    batch, targets, alpha = by_torch.call_args.args
    assert (batch.tolist(), targets.tolist(), alpha) == ([[2.0, 3.0]], [1], 0.5)


@pytest.mark.parametrize(
    ("pauses", "shape", "takes"), [(False, (5, 3), True), (True, (5, 3), False), (False, (3, 5), False)], ids=str
)
def test_steps_without_torch_whose_results_begin_with_the_examples_may_share_a_call(
    pauses: bool, shape: tuple[int, ...], takes: bool
) -> None:
    interpreter = Mock(dtype=torch.float32, pauses=pauses)
    batch = torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)
    sized = Sized(interpreter, batch, (False, False), [], [torch.Size(shape)], Mock())
    assert InterpretedStep(sized, Mock()).takes_several == takes


def of_own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Losses that cannot be computed from outputs alone: they are a step's second result."""
    return (outputs - targets[:, None]).square().mean(1) * (1 + outputs.mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("most", [1, 2 * 5 * 4, 1 << 20])
@pytest.mark.parametrize("own_loss", [False, True])
@pytest.mark.parametrize(("name", "length"), [("tanh", 5), ("batch norm", 5), ("in place", 4), ("softmax", 5)])
def test_several_steps_in_one_call_have_the_bits_of_single_ones(
    name: str, length: int, own_loss: bool, most: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bound_module, "MOST_KEPT", most)
    model, weights = create(MODULES[name], 0, dtype)
    draw = torch.Generator().manual_seed(length)
    # Columns of a larger tensor: examples need not lie behind each other.
    x, y = torch.randn(3 * length, 7, generator=draw, dtype=dtype)[:, :6], torch.arange(3 * length) % 4
    if own_loss:
        y = y.to(dtype)
    # Steps of four examples are made from those of five and four.
    how = StepRecording((5, 4), interprets=True, longest=5)
    task = task_for(None, of_own_loss) if own_loss else TASK
    made, calls = [], []
    for in_one_call in (True, False):
        bound = BoundModule(model, weights, task, dtype, plain=True, recording=how)
        bound.load(weights)
        batches = x.split(length), y.split(length)
        with torch.no_grad():
            assert bound.record(*batches, [length] * 3)
            if in_one_call:
                each = [*bound.differentiate_several(x, y, length, -0.1)]
            else:
                each = [bound.differentiate(*batch, None, -0.1) for batch in zip(*batches, strict=True)]
        calls.append(len(each))
        results = [
            torch.cat([one for one in of_each if one is not None])
            for of_each in zip(*each, strict=True)
            if of_each[0] is not None
        ]
        made.append([*results, *(one.clone() for one in bound.weights.vectors)])
    assert calls == [{1: 3, 40: 2, 1 << 20: 1}[most], 3]
    assert len(made[0]) == len(made[1]) == (5 if own_loss else 4)
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    assert not torch.equal(made[0][-3], weights.params)


def test_no_more_steps_share_a_call_than_a_stop_can_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound_module, "MOST_AT_ONCE", 2)
    model, weights = create(MODULES["tanh"], 0, torch.float32)
    how = StepRecording((2,), interprets=True)
    bound = BoundModule(model, weights, TASK, torch.float32, plain=True, recording=how)
    x, y = torch.randn(10, 6), torch.arange(10) % 4
    with torch.no_grad():
        assert bound.record(x.split(2), y.split(2), [2] * 5)
        each = [outputs for outputs, _ in bound.differentiate_several(x, y, 2, -0.1)]
    assert [0 if outputs is None else len(outputs) for outputs in each] == [4, 4, 2]


def test_a_target_out_of_range_ends_several_steps_where_it_is() -> None:
    model, weights = create(MODULES["tanh"], 0, torch.float64)
    x, y = torch.randn(15, 6, dtype=torch.float64), torch.arange(15) % 4
    wrong = torch.cat([y[:12], torch.tensor([9, 0, 0])])
    how = StepRecording((5,), interprets=True)
    made = []
    for targets, count in ((wrong, 3), (y, 2)):
        bound = BoundModule(model, weights, TASK, torch.float64, plain=True, recording=how)
        bound.load(weights)
        with torch.no_grad():
            bound.record(x.split(5), y.split(5), [5] * 3)
            if count == 3:
                with pytest.raises(RuntimeError, match="out of bounds"):
                    [*bound.differentiate_several(x, targets, 5, -0.1)]
            else:
                [*bound.differentiate_several(x[:10], targets[:10], 5, -0.1)]
        made.append(bound.weights.params.clone())
    # Up to a part of the third step, which does not move weights before it has read all targets.
    torch.testing.assert_close(made[0], made[1])


@pytest.mark.parametrize(
    ("client", "module", "parts", "expected"),
    [
        ({}, "tanh", {}, True),
        ({"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5}}, "tanh", {}, False),
        ({"correction": {"name": "prox", "mu": 0.1}}, "tanh", {}, False),
        ({"correction": {"name": "mime"}}, "tanh", {}, False),
        (
            {},
            "tanh",
            {"objective": lambda module, x, y, at: functional.cross_entropy(module(x), y, reduction="none") * 2},
            False,
        ),
        ({}, "dropout", {}, False),
    ],
    ids=["plain", "momentum", "prox", "mime", "objective", "dropout"],
)
def test_steps_share_a_call_where_nothing_comes_between_them(
    client: dict[str, Any], module: str, parts: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    real = InterpretedStep.of_several

    def counted(self: InterpretedStep, x: Tensor, y: Tensor, alpha: float) -> Any:
        calls.append(len(y))
        return real(self, x, y, alpha)

    monkeypatch.setattr(InterpretedStep, "of_several", counted)
    monkeypatch.setattr(compared_trainer, "is_due", lambda count: False)
    draw = np.random.default_rng(0)
    data = raysim.FederatedDataset.from_clients(
        train={str(i): (draw.normal(size=(11, 6)), draw.integers(0, 4, 11)) for i in range(2)}
    )
    run = raysim.Experiment.model_validate(
        {
            "rounds": 1,
            "cohort": {"size": 2},
            "client": {"batch_size": 5, **client},
            "engine": {"workers": 0, "trainer": "interpreted"},
        }
    )
    [*raysim.rounds(run, dataset=data, model=MODULES[module], **parts)]
    assert calls == ([10, 1, 10, 1] if expected else [])
