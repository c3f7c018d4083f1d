"""Steps by autograd that begin with the gradient at the outputs, by hand, are those that begin with the loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client.trainers import trainer_table
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.gradient_seed import gradients_from
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.client.trainers.scores import Scores
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds.auto_trainer import with_kept_trainer
from raysim.models.model import create
from raysim.models.task import Task, task_for
from tests.support.small_data import make_clients


class Branching(nn.Module):
    """Its course depends on values, so its local step is not recorded; one parameter does not always enter."""

    def __init__(self, inputs: int = 5, outputs: int = 3) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        if h.sum() > 0:
            h = h + torch.relu(self.b(h))
        return cast(Tensor, self.out(h))


LABELS = torch.tensor([0, 2, 1, 2, 0, 1])
PLACES = torch.tensor([[1, 2, 0, 0], [2, 2, 1, 1], [0, 0, 0, 0], [1, 0, 2, 0], [1, 1, 1, 0], [2, 0, 0, 0]])

TASKS: dict[str, tuple[Task, tuple[int, ...], Tensor]] = {
    "classes": (task_for(3, None), (6, 5), LABELS),
    "a row of places": (task_for(3, None), (6, 4, 5), PLACES),
    "padding": (task_for(3, None, padding=0), (6, 4, 5), PLACES),
    "padding, by place": (task_for(3, None, padding=0, by_place=True), (6, 4, 5), PLACES),
    "numbers": (task_for(None, None), (6, 5), torch.randn(6, 3, dtype=torch.float64)),
}


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", TASKS)
def test_gradients_and_scores_are_those_of_the_loss(name: str, plain: bool) -> None:
    task, shape, y = TASKS[name]
    model, weights = create(Branching, 0, torch.float64)
    x = torch.randn(shape, dtype=torch.float64)
    made = []
    for from_outputs in (True, False):
        how = StepRecording(from_outputs=from_outputs)
        bound = BoundModule(model, weights, task, torch.float64, plain=plain, recording=how)
        bound.load(weights)
        scores = Scores.of_clients(task, torch.cat([y, y[:4]]), np.array([len(y) + 4]))
        with torch.no_grad():
            for rows in (slice(None), slice(4)):
                outputs, losses = bound.differentiate(x[rows], y[rows], None, -0.1)
                assert outputs is not None
                assert not outputs.requires_grad
                assert (losses is None) == from_outputs
                scores.keep(outputs, losses)
        made.append((bound.weights.params if plain else bound.gradient, *scores.totals()))
    for got, wanted in zip(*made, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14, equal_nan=True)


class Mean(nn.Module):
    """Estimates a mean: its outputs are a view of its parameter, which a plain step writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.mean.expand(len(x), 3)


@pytest.mark.parametrize("from_outputs", [True, False])
def test_losses_are_of_the_outputs_before_the_step(from_outputs: bool) -> None:
    task, _, y = TASKS["numbers"]
    model, weights = create(Mean, 0, torch.float64)
    how = StepRecording(from_outputs=from_outputs)
    bound = BoundModule(model, weights, task, torch.float64, plain=True, recording=how)
    bound.load(weights)
    scores = Scores.of_clients(task, torch.cat([y, y]), np.array([2 * len(y)]))
    with torch.no_grad():
        for _ in range(2):
            outputs, losses = bound.differentiate(torch.zeros(6, 5, dtype=torch.float64), y, None, -0.5)
            scores.keep(outputs, losses)
    # By hand: the mean is 0, and then half of the gradient 2 / 3 of the targets' mean.
    second = y.mean(0) / 3
    wanted = y.square().mean(1).sum() + (y - second).square().mean(1).sum()
    torch.testing.assert_close(scores.totals()[0], wanted.view(1), rtol=1e-12, atol=1e-12)


def test_gradients_from_outputs_are_torchs() -> None:
    a, unused = torch.randn(4, requires_grad=True), torch.randn(2, requires_grad=True)
    seed = torch.randn(3, 4)
    got = gradients_from(torch.outer(torch.arange(3.0), a.exp()), seed, (a, unused))
    (wanted,) = torch.autograd.grad(torch.outer(torch.arange(3.0), a.exp()), (a,), seed)
    assert got[1] is None
    assert got[0] is not None
    assert torch.equal(got[0], wanted)
    assert a.grad is None
    with pytest.raises(RuntimeError):
        gradients_from(torch.ones(3, 4), seed, (a,))


@pytest.fixture
def data() -> raysim.FederatedDataset:
    return raysim.FederatedDataset.from_clients(train=make_clients([3, 5, 8, 6]), test=make_clients([4]))


def experiment(**changes: Any) -> raysim.Experiment:
    base: dict[str, Any] = {
        "rounds": 3,
        "cohort": {"size": 2},
        "client": {"batch_size": 4},
        "engine": {"workers": 0},
    }
    return raysim.Experiment.model_validate({**base, **changes})


def own_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


@pytest.mark.parametrize(
    ("changes", "given", "begins"),
    [
        ({}, {}, True),
        ({"engine": {"workers": 0, "trainer": "one_by_one"}}, {"model": lambda: nn.Linear(5, 3)}, True),
        ({}, {"model": lambda: nn.Linear(5, 3)}, False),
        ({}, {"loss": own_loss}, False),
        ({"client": {"batch_size": 4, "accumulate": 2}}, {}, False),
    ],
)
def test_who_begins_with_the_outputs(
    changes: dict[str, Any], given: dict[str, Callable[..., Any]], begins: bool, data: raysim.FederatedDataset
) -> None:
    parts: dict[str, Any] = {"model": Branching, **given}
    choice = resolve(experiment(**changes), dataset=data, **parts).choice
    assert choice.from_outputs == begins


def test_a_run_that_began_with_the_loss_goes_on_so(
    data: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(trainer_table, "CALL_AUTOGRAD", ())
        whole = raysim.run(experiment(), dataset=data, model=Branching, path=tmp_path / "whole")
        raysim.run(experiment(rounds=2), dataset=data, model=Branching, path=tmp_path / "resumed")
    on = raysim.run(experiment(), dataset=data, model=Branching, path=tmp_path / "resumed", resume=True)
    assert all(torch.equal(on.params[name], one) for name, one in whole.params.items())
    plan = resolve(experiment(), dataset=data, model=Branching)
    assert plan.choice.from_outputs
    assert not with_kept_trainer(plan, tmp_path / "resumed").choice.from_outputs
    raysim.run(experiment(rounds=2), dataset=data, model=Branching, path=tmp_path / "anew")
    assert with_kept_trainer(plan, tmp_path / "anew").choice.from_outputs
