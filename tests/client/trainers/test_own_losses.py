"""Steps with losses of one's own on classes: the interpreter carries them out without a pause, as autograd does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.recording.instruction_list import InstructionList
from raysim.client.trainers.recording.interpreted_step import InterpretedStep
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.kernel import needs_kernel

CLASSES = 4


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """As in detection: easy examples count less."""
    shares = outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]
    return -((1 - shares.exp()) ** 2) * shares


def without_first(outputs: Tensor, targets: Tensor) -> Tensor:
    """The first class counts for nothing."""
    return functional.cross_entropy(outputs, targets, reduction="none", ignore_index=0)


def marked(outputs: Tensor, targets: Tensor) -> Tensor:
    """The same, of targets that torch marks."""
    marks = torch.where(targets == 0, torch.full_like(targets, -100), targets)
    return functional.cross_entropy(outputs, marks, reduction="none")


def renamed(outputs: Tensor, targets: Tensor) -> Tensor:
    """Writes to a copy of the targets, and reads both: the first class is half the second."""
    others = targets.clone()
    others[others == 0] = 1
    losses = [functional.cross_entropy(outputs, each, reduction="none") for each in (others, targets)]
    return (losses[0] + losses[1]) / 2


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "twice": lambda outputs, targets: 2 * functional.cross_entropy(outputs, targets, reduction="none"),
    "focal": focal,
    "several places": lambda outputs, targets: outputs.square().gather(1, targets[:, None].expand(-1, 3)).sum(1),
    "without the first class": without_first,
}


BY_TORCH: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {"marked": marked, "renamed": renamed}
"""In which torch has a part."""


def bound_to(loss: Callable[[Tensor, Tensor], Tensor], recording: StepRecording) -> BoundModule:
    model, weights = create(network, 0, torch.float64)
    made = BoundModule(model, weights, task_for(CLASSES, loss), torch.float64, plain=True, recording=recording)
    made.load(weights)
    return made


def batch(seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(5, 6, generator=draw, dtype=torch.float64), torch.randint(CLASSES, (5,), generator=draw)


@pytest.mark.parametrize("loss", [*LOSSES, *BY_TORCH])
def test_steps_are_those_of_autograd(loss: str) -> None:
    needs_kernel()
    made = []
    for recording in (StepRecording((5,), interprets=True), StepRecording()):
        bound = bound_to({**LOSSES, **BY_TORCH}[loss], recording)
        with torch.no_grad():
            for seed in range(3):
                x, y = batch(seed)
                assert bound.record([x], [y], [5]) == bool(recording.lengths)
                outputs, losses = bound.differentiate(x, y, None, -0.1)
                assert outputs is not None
                assert losses is not None
                made.append((outputs, losses, bound.weights.params.clone()))
    for got, wanted in zip(made[:3], made[3:], strict=True):
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_torch_has_no_part_in_them(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_kernel()
    paused: list[object] = []
    made = InstructionList.interpreter

    def noted(self: InstructionList, by_torch: object) -> object:
        paused.extend(self.pauses)
        return made(self, by_torch)  # type: ignore[arg-type]

    monkeypatch.setattr(InstructionList, "interpreter", noted)
    bound = bound_to(LOSSES[loss], StepRecording((5,), interprets=True))
    x, y = batch(0)
    with torch.no_grad():
        assert bound.record([x], [y], [5])
    assert paused == []
    step = bound._recorded.get(5)
    assert isinstance(step, InterpretedStep)
    assert step.takes_several


@pytest.mark.parametrize("loss", ["twice", "focal"])
@pytest.mark.parametrize("target", [CLASSES, -1])
def test_a_target_that_is_no_class_is_refused_as_by_torch(loss: str, target: int) -> None:
    needs_kernel()
    bound = bound_to(LOSSES[loss], StepRecording((5,), interprets=True))
    x, y = batch(0)
    with torch.no_grad():
        bound.record([x], [y], [5])
        with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
            bound.differentiate(x, torch.full_like(y, target), None, -0.1)
