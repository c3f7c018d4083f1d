"""A run ends where a local step of its trainer is not autograd's; comparing changes no number."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client.local_training import ClientFailure
from raysim.client.trainer import Client, LockstepTrainer, Trainer, Updates
from raysim.client.trainers import compared_trainer, construction
from raysim.client.trainers.compared_trainer import ComparedTrainer
from raysim.client.trainers.kernel.kernels import NONE_USED, KernelsUsed
from raysim.client.trainers.several_points import SeveralPoints
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.engine.plan.resolve import resolve
from raysim.engine.worker import plan_trainers
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.plan_trainers import PlanTrainers
from raysim.engine.worker.pool import Pool
from raysim.models.model import Weights
from tests.support.executors import bits
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]


class Wrong:
    """A trainer that is off by a third."""

    trains_together = False

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        for updates in self._trainer.train(broadcast, clients, lr, start):
            yield replace(updates, delta=updates.delta * 1.5)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> list[TrainerChoice]:
    """Trainers are wrong, but for those by autograd; what was made."""
    made: list[TrainerChoice] = []

    def make(choice: TrainerChoice, *given: Any) -> Trainer:
        made.append(choice)
        trainer = construction.make(choice, *given)
        return trainer if choice.trainer == "one_by_one" else Wrong(trainer)

    monkeypatch.setattr(plan_trainers, "make", make)
    return made


def compare_always(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Compare every call from now on; return what will be found."""
    found: list[str | None] = []
    compared = compared_trainer.ComparedTrainer._compared

    def noted(self: Any, *given: Any) -> str | None:
        found.append(compared(self, *given))
        return found[-1]

    monkeypatch.setattr(compared_trainer, "is_due", lambda count: True)
    monkeypatch.setattr(compared_trainer.ComparedTrainer, "_compared", noted)
    return found


@pytest.mark.usefixtures("wrong")
@pytest.mark.parametrize("trainer", ["recorded", "stacked"])
def test_a_run_whose_steps_are_not_autograd_s_ends(
    trainer: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    steps = raysim.rounds(experiment(engine={"workers": 0, "trainer": trainer, "chunk_size": 7}), dataset=dataset)
    next(steps)
    with pytest.raises(raysim.ClientError) as caught:
        next(steps)
    text = str(caught.value)
    assert text.startswith("A local step of client 'c")
    assert f"' is not autograd's, in round 1, chunk 0, on this process: engine.trainer = '{trainer}' changes " in text
    assert " by other numbers: the difference has the norm " in text
    assert text.endswith(
        'Set engine.trainer = "one_by_one", whose steps are autograd\'s, and start afresh. The run names no part of a '
        "script or a package: please report it."
    )


@pytest.mark.usefixtures("wrong")
def test_parts_of_a_script_are_named(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(engine={"workers": 0, "trainer": "recorded", "chunk_size": 7})
    with pytest.raises(raysim.ClientError, match=r"this run has model=\. A part may read values where torch"):
        list(raysim.rounds(exp.changed({"model": None}), dataset=dataset, model=lambda: nn.Linear(5, 3)))


@pytest.mark.usefixtures("wrong")
def test_wrong_steps_end_a_regression_whose_losses_are_small(experiment: Make) -> None:
    clients = {str(i): (torch.randn(8, 5).numpy(), 1e-4 * torch.randn(8).numpy()) for i in range(7)}
    exp = experiment(engine={"workers": 0, "trainer": "recorded"}).changed({"model": None})

    def zeros() -> nn.Module:
        module = nn.Linear(5, 1)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        return module

    with pytest.raises(raysim.ClientError, match="is not autograd's"):
        list(raysim.rounds(exp, dataset=raysim.FederatedDataset.from_clients(train=clients), model=zeros))


def test_steps_by_autograd_are_not_compared(
    wrong: list[TrainerChoice],
    experiment: Make,
    dataset: raysim.FederatedDataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = compare_always(monkeypatch)
    list(raysim.rounds(experiment(engine={"workers": 0, "trainer": "one_by_one"}), dataset=dataset))
    assert {each.trainer for each in wrong} == {"one_by_one"}
    assert not found


def test_what_steps_are_compared_with_calls_no_kernel_of_raysim_s(
    wrong: list[TrainerChoice], experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    plan = resolve(experiment(engine={"workers": 0, "trainer": "recorded"}), dataset=dataset)
    plan = replace(plan, choice=replace(plan.choice, kernels=KernelsUsed(True, True, True)))
    trainers = PlanTrainers(plan, plan.initial)
    assert isinstance(trainers.of(plan.experiment.training), ComparedTrainer)
    trainers.compared[0]._by_autograd()
    assert (wrong[-1].trainer, wrong[-1].kernels) == ("one_by_one", NONE_USED)


def test_a_trainer_of_several_runs_stays_one(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plan = resolve(experiment(engine={"workers": 0, "trainer": "stacked"}), dataset=dataset)
    trainers = PlanTrainers(plan, plan.initial)
    assert isinstance(trainers.of(plan.experiment.training), LockstepTrainer)
    assert len(trainers.compared) == 1


def test_steps_that_take_several_gradients_are_not_compared(experiment: Make) -> None:
    client = {"personalisation": {"name": "maml", "alpha": 0.1, "hessian": "none"}, "batch_size": 4}
    dataset = raysim.FederatedDataset.from_clients(make_clients([3 + 2 * i for i in range(20)]), make_clients([25] * 4))
    plan = resolve(experiment(client=client, engine={"workers": 0, "trainer": "recorded"}), dataset=dataset)
    assert isinstance(Pool(plan, torch.device("cpu"), "here", ExampleMemory())._trainer, SeveralPoints)


class Drops(nn.Module):
    """Draws from torch's generator and by addressed masks, and counts in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.drop(self.first(x)))
        outputs: Tensor = self.last(nn.functional.dropout(torch.tanh(hidden), 0.2, self.training))
        return outputs


def drawing() -> Callable[..., Tensor]:
    """A loss that draws from a generator of its own, for more examples than the first two."""
    rng = random.Random(1)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return losses * (1.0 if len(targets) < 3 else 1 + rng.random())

    return loss


ADAPTED = {"client": {"optimizer": {"name": "adam", "lr": 0.01}, "batch_size": 3}}
SCAFFOLD = {"client": {"correction": {"name": "scaffold"}, "batch_size": 3, "fill_last_batch": True}}
FINE_TUNED = {"evaluation": {"every": 1, "fine_tuning": {"steps": 2}}}


@pytest.mark.parametrize("sections", [{}, ADAPTED, SCAFFOLD, FINE_TUNED], ids=["sgd", "adam", "scaffold", "tuned"])
@pytest.mark.parametrize(
    ("trainer", "part"), [("recorded", "model"), ("interpreted", "model"), ("fused", "loss"), ("stacked", "")]
)
def test_a_run_has_the_same_numbers_with_comparisons(
    trainer: str,
    part: str,
    sections: dict[str, Any],
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exp = experiment(**{"engine": {"workers": 0, "trainer": trainer, "chunk_size": 3}} | sections)
    # Clients are tuned on examples of their own.
    dataset = raysim.FederatedDataset.from_clients(make_clients([3 + 2 * i for i in range(20)]), make_clients([25] * 4))

    def run() -> list[Any]:
        parts: dict[str, Any] = {"model": Drops, "loss": drawing()}
        return [bits(each) for each in raysim.rounds(exp, dataset=dataset, **{part: parts[part]} if part else {})]

    if part == "model":
        exp = exp.changed({"model": None, "client.fill_last_batch": True})
    expected = run()
    found = compare_always(monkeypatch)
    assert run() == expected
    assert len(found) > 20
    assert set(found) == {None}


@pytest.mark.parametrize("says", ["torch", "the processor's kernel"])
def test_a_comparison_that_lacks_memory_is_left_out(
    says: str, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def lacking(self: object, alone: object) -> None:
        asked.append("difference")
        if says == "torch":
            raise torch.OutOfMemoryError("no room")
        raise ClientFailure(0) from RuntimeError("you tried to allocate memory of 1 TB")

    monkeypatch.setattr(compared_trainer.ComparedTrainer, "difference", lacking)
    exp = experiment(engine={"workers": 0, "trainer": "recorded"})
    assert len(list(raysim.rounds(exp, dataset=dataset))) == exp.rounds
    assert asked


def test_an_error_of_a_part_in_a_comparison_names_the_client(
    experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: object, *_: object) -> None:
        raise KeyError("my own mistake")

    monkeypatch.setattr(compared_trainer.ComparedTrainer, "_compared", failing)
    exp = experiment(engine={"workers": 0, "trainer": "recorded"})
    with pytest.raises(raysim.ClientError, match=r"^Training client 'c\d+' failed in round \d, chunk \d, .*my own"):
        list(raysim.rounds(exp, dataset=dataset))
