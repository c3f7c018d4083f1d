"""Losses and hits of outputs for many classes, made together in C, are those of the task's own functions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers import class_scores
from raysim.client.trainers.class_scores import MANY, scorer
from raysim.client.trainers.construction import make
from raysim.client.trainers.kernel import operators
from raysim.client.trainers.trainer_choice import TrainerChoice, TrainerName
from raysim.data.on_device import Examples
from raysim.models import task as tasks
from raysim.models.model import bind, create
from raysim.models.task import Task, task_for
from tests.support.kernel import needs_kernel

TASK = task_for(2 * MANY, None)


def scored(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
    needs_kernel()
    of_task = scorer(TASK, torch.float64 if outputs.dtype == torch.float64 else torch.float32)
    assert of_task is not None
    return of_task(outputs, targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [MANY, MANY + 1, 2 * MANY + 15])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 3, 2)])
def test_losses_and_hits_are_the_tasks(shape: tuple[int, ...], classes: int, dtype: torch.dtype) -> None:
    draws = torch.Generator().manual_seed(classes)
    outputs = 9 * torch.randn(*shape, classes, generator=draws, dtype=dtype)
    targets = torch.randint(0, classes, shape, generator=draws)
    # Half of the rows are hits.
    largest = outputs.argmax(-1)
    targets = torch.where(torch.rand(shape, generator=draws) < 0.5, largest, targets)
    found = scored(outputs, targets)
    assert found is not None
    losses, hits = found
    exact = tasks.cross_entropy(outputs.double(), targets)
    # Of sums in the outputs' dtype, whose numbers are below 100.
    assert (losses.double() - exact).abs().max() < 100 * torch.finfo(dtype).eps
    assert torch.equal(hits, tasks.hits(outputs, targets))
    assert losses.dtype == dtype


@pytest.mark.parametrize("by_place", [False, True])
@pytest.mark.parametrize("padding", [0, 7, -100])
def test_places_that_do_not_count_have_neither_loss_nor_hit(padding: int, by_place: bool) -> None:
    needs_kernel()
    task = task_for(2 * MANY, None, padding=padding, uncounted=(3,), by_place=by_place)
    outputs = 9 * torch.randn(6, 5, 2 * MANY, generator=torch.Generator().manual_seed(5))
    targets = outputs.argmax(-1)
    targets[0, 3:] = targets[1, 0] = targets[2] = padding
    targets[3], targets[4, 2] = 3, 4
    # What is there is not read.
    outputs[0, 4], outputs[1, 0, 3] = torch.nan, torch.inf
    in_one_pass = scorer(task, torch.float32)
    assert in_one_pass is not None
    assert task.correct is not None
    found = in_one_pass(outputs, targets)
    assert found is not None
    assert (found[0] - task.losses(outputs, targets)).abs().max() < 1e-4
    assert torch.equal(found[1], task.correct(outputs, targets))
    assert found[1][:3].tolist() == pytest.approx([0.6, 0.8, 0.0])


def test_labels_that_accuracy_does_not_count_have_a_loss_and_no_hit() -> None:
    needs_kernel()
    task = task_for(2 * MANY, None, uncounted=(3,))
    outputs = 9 * torch.randn(4, 5, 2 * MANY, generator=torch.Generator().manual_seed(6))
    targets = outputs.argmax(-1)
    targets[0, 3:] = targets[2] = 3
    outputs[0, 3:, 3] = outputs[2, :, 3] = 99.0
    in_one_pass = scorer(task, torch.float32)
    assert in_one_pass is not None
    assert task.correct is not None
    found = in_one_pass(outputs, targets)
    assert found is not None
    assert (found[0] - task.losses(outputs, targets)).abs().max() < 1e-4
    assert torch.equal(found[1], task.correct(outputs, targets))
    assert found[1].tolist() == pytest.approx([0.6, 1.0, 0.0, 1.0])


def test_a_row_does_not_depend_on_the_others() -> None:
    outputs = torch.randn(9, MANY + 3, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(9)
    together = scored(outputs, targets)
    assert together is not None
    for row in range(9):
        alone = scored(outputs[row : row + 1], targets[row : row + 1])
        assert alone is not None
        assert all(torch.equal(a[0], b[row]) for a, b in zip(alone, together, strict=True))


def test_the_first_of_equal_outputs_is_the_largest_and_none_is_larger_than_what_is_not_a_number() -> None:
    equal, spoilt = torch.zeros(MANY), torch.zeros(MANY)
    equal[[40, 70]] = 5.0
    spoilt[90], spoilt[[100, 110]] = 7.0, torch.nan
    # Numbers behind one that is none are compared with it, too.
    first = torch.zeros(MANY)
    first[0], first[5] = torch.nan, 3.0
    outputs = torch.stack([equal, equal, spoilt, spoilt, spoilt, first, first, torch.zeros(MANY)])
    targets = torch.tensor([40, 70, 90, 100, 110, 0, 5, 0])
    found = scored(outputs, targets)
    assert found is not None
    losses, hits = found
    assert hits.tolist() == [1, 0, 0, 1, 0, 1, 0, 1] == tasks.hits(outputs, targets).tolist()
    assert losses.isnan().tolist() == [False, False, True, True, True, True, True, False]


def test_infinite_outputs_are_scored_as_torch_scores_them() -> None:
    outputs = torch.zeros(4, MANY)
    outputs[0, 3] = outputs[1, 3] = -torch.inf
    outputs[2, 3] = outputs[3, 3] = torch.inf
    targets = torch.tensor([3, 4, 3, 4])
    found = scored(outputs, targets)
    assert found is not None
    losses, hits = found
    wanted = tasks.cross_entropy(outputs, targets)
    assert torch.equal(losses.isnan(), wanted.isnan())
    assert torch.equal(losses.isinf(), wanted.isinf())
    assert losses[1].item() == pytest.approx(wanted[1].item(), rel=1e-6)
    assert hits.tolist() == tasks.hits(outputs, targets).tolist()


@pytest.mark.parametrize("label", [-1, MANY])
def test_a_label_that_is_no_class_is_left_to_torch(label: int) -> None:
    assert scored(torch.zeros(2, MANY), torch.tensor([0, label])) is None


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.zeros(2, MANY - 1), torch.tensor([0, 1])),
        (torch.zeros(2, MANY, dtype=torch.bfloat16), torch.tensor([0, 1])),
        (torch.zeros(2, MANY), torch.tensor([0, 1], dtype=torch.int32)),
        (torch.zeros(2, 3, MANY), torch.tensor([0, 1])),
        (torch.zeros(0, MANY), torch.zeros(0, dtype=torch.int64)),
    ],
    ids=["few classes", "bfloat16", "int32", "places", "nothing"],
)
def test_what_it_does_not_know_is_left_to_the_task(
    outputs: Tensor, targets: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by chance: the code in C would read behind the labels, and stop at one that is no class.
    monkeypatch.setattr(operators, "class_scores", lambda *_: pytest.fail("it was handed to the code in C"))
    assert scored(outputs, targets) is None


def test_outputs_whose_rows_lie_apart_are_scored_too() -> None:
    outputs = torch.randn(MANY, 6, generator=torch.Generator().manual_seed(2)).t()
    targets = torch.arange(6)
    apart, dense = scored(outputs, targets), scored(outputs.contiguous(), targets)
    assert apart is not None
    assert dense is not None
    assert all(map(torch.equal, apart, dense))


@pytest.mark.parametrize(
    "task",
    [
        task_for(None, None),
        task_for(MANY, lambda outputs, targets: outputs.sum((1, 2)), padding=0),
        task_for(MANY, lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")),
    ],
    ids=["regression", "loss of one's own of texts", "loss of one's own"],
)
def test_other_tasks_have_no_scorer(task: Task) -> None:
    assert class_scores.scorer(task, torch.float32) is None


@pytest.mark.parametrize(("trainer", "in_c"), [("interpreted", True), ("recorded", False), ("one_by_one", False)])
def test_interpreted_steps_are_scored_so(trainer: TrainerName, in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_kernel()
    calls: list[int] = []
    in_one_pass = operators.class_scores

    def watched(outputs: Tensor, labels: Tensor, skipped: int | None) -> tuple[Tensor, Tensor] | None:
        calls.append(len(labels))
        return in_one_pass(outputs, labels, skipped)

    monkeypatch.setattr(operators, "class_scores", watched)
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((12, 6), dtype=np.float32), draw.integers(0, MANY, 12)
    data, section = FederatedDataset.from_clients(train={"it": (x, y)}), ClientSection(batch_size=4)
    model, weights = create(lambda: nn.Linear(6, MANY), 0, torch.float32)
    task = task_for(MANY, None)
    made = make(TrainerChoice.of_size(trainer, 1), model, weights, task, section, "float32")
    members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
    # At a rate of 0 all outputs are the initial module's.
    (trained,) = local_training.train(made, weights, members, 0.0, model.params)
    outputs = bind(model, weights, torch.device("cpu"))(torch.from_numpy(x)).detach()
    labels = torch.from_numpy(y)
    losses, hits = (each(outputs, labels).double().sum().item() for each in (tasks.cross_entropy, tasks.hits))
    assert trained.updates.loss.tolist() == pytest.approx([losses], rel=1e-6)
    assert trained.updates.correct.tolist() == [hits]
    assert sum(calls) == (12 if in_c else 0)
