"""The gradient of cross entropy over many classes, made in one pass in C, is that of torch's operators."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers import class_gradient, loss_gradient
from raysim.client.trainers.class_scores import MANY
from raysim.client.trainers.construction import make
from raysim.client.trainers.kernel import operators
from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.trainer_choice import TrainerChoice, TrainerName
from raysim.data.on_device import Examples
from raysim.models.lstm import Lstm
from raysim.models.model import create
from raysim.models.task import Task, task_for
from tests.support.kernel import needs_kernel

CLASSES = MANY + 13
PADDING = 0
TASKS = {
    "classes": task_for(CLASSES, None),
    "texts": task_for(CLASSES, None, padding=PADDING, uncounted=(1,)),
    "texts by place": task_for(CLASSES, None, padding=PADDING, by_place=True),
}


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    needs_kernel()


def batch(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Outputs and targets, some of which are padding where there is any."""
    draws = torch.Generator().manual_seed(math.prod(shape))
    targets = torch.randint(0, CLASSES, shape, generator=draws)
    targets = torch.where(torch.rand(shape, generator=draws) < 0.4, PADDING, targets)
    return 9 * torch.randn(*shape, CLASSES, generator=draws, dtype=dtype), targets


def scaled(task: Task, outputs: Tensor, targets: Tensor, in_c: bool) -> Tensor:
    """The gradient of the mean loss, which takes a factor of its caller."""
    made, factor, losses = loss_gradient.for_task(task, in_c=outputs.dtype if in_c else None)(outputs, targets)
    assert losses is None
    return made * (factor / len(targets))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "shape"), [*(("classes", (rows,)) for rows in (1, 7)), *product(TASKS, [(3, 5), (2, 3, 2)])]
)
def test_it_is_the_gradient_by_torch(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    outputs, targets = batch(shape, dtype)
    wanted = scaled(TASKS[name], outputs.double(), targets, in_c=False)
    found = scaled(TASKS[name], outputs, targets, in_c=True)
    assert found.dtype == dtype
    # Shares are at most 1, and a row's factor is at most 1 over the number of examples.
    assert (found - wanted).abs().max() < 50 * torch.finfo(dtype).eps


def watched_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each call of the code in C from now on."""
    rows: list[int] = []
    in_one_pass = operators.class_gradient

    def watched(outputs: Tensor, *others: Tensor) -> Tensor:
        rows.append(len(outputs))
        return in_one_pass(outputs, *others)

    monkeypatch.setattr(operators, "class_gradient", watched)
    return rows


def test_it_is_computed_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = watched_rows(monkeypatch)
    scaled(TASKS["texts"], *batch((3, 5), torch.float32), in_c=True)
    scaled(TASKS["texts"], *batch((3, 5), torch.float32), in_c=False)
    assert rows == [15]


def test_what_is_at_places_of_padding_is_not_read() -> None:
    outputs, targets = batch((4, 6), torch.float32)
    wanted = scaled(TASKS["texts"], outputs, targets, in_c=True)
    outputs[targets == PADDING] = torch.nan
    found = scaled(TASKS["texts"], outputs, targets, in_c=True)
    assert torch.equal(found, wanted)
    assert not found[targets == PADDING].any()


def test_a_row_does_not_depend_on_the_others() -> None:
    outputs, targets = batch((9,), torch.float32)
    factors = torch.linspace(0.5, 2.0, 9)
    together = class_gradient.gradient(outputs, targets, factors)
    for row in range(9):
        one = slice(row, row + 1)
        assert torch.equal(class_gradient.gradient(outputs[one], targets[one], factors[one])[0], together[row])


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_that_is_no_class_is_an_error(label: int) -> None:
    with pytest.raises(IndexError, match=f"label {label} is none of the {CLASSES} classes"):
        class_gradient.gradient(torch.zeros(2, CLASSES), torch.tensor([0, label]), torch.ones(2))


@pytest.mark.parametrize(
    ("targets", "factors"),
    [
        (torch.zeros(1, dtype=torch.int64), torch.ones(2)),
        (torch.zeros(2, dtype=torch.int64), torch.ones(1)),
        (torch.zeros(2, dtype=torch.int64), torch.ones(2, dtype=torch.float64)),
        (torch.zeros(2, dtype=torch.int32), torch.ones(2)),
    ],
    ids=["few labels", "few factors", "double factors", "int32"],
)
def test_what_does_not_fit_is_refused(targets: Tensor, factors: Tensor) -> None:
    with pytest.raises(RuntimeError, match=r"Cross entropy needs (labels|factors) of shape"):
        class_gradient.gradient(torch.zeros(2, CLASSES), targets, factors)


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [
        (torch.zeros(2, MANY - 1), torch.tensor([0, 1])),
        (torch.zeros(2, MANY, dtype=torch.bfloat16), torch.tensor([0, 1])),
        (torch.zeros(2, MANY, dtype=torch.float64), torch.tensor([0, 1])),
        (torch.zeros(2, MANY), torch.tensor([0, 1], dtype=torch.int32)),
        (torch.zeros(2, 3, MANY), torch.tensor([0, 1])),
        (torch.zeros(MANY), torch.tensor(0)),
    ],
    ids=["few classes", "bfloat16", "float64", "int32", "places", "one number"],
)
def test_what_it_does_not_know_is_torchs(outputs: Tensor, targets: Tensor) -> None:
    assert not class_gradient.is_known(outputs, targets, torch.float32)


@pytest.mark.parametrize(
    "outputs",
    [
        torch.zeros(2 * CLASSES),
        torch.zeros(1, 2, CLASSES),
        torch.zeros(CLASSES, 2).t(),
        torch.zeros(2, 2 * CLASSES)[:, ::2],
    ],
    ids=["one axis", "three axes", "turned", "every other"],
)
def test_what_does_not_lie_in_rows_is_refused(outputs: Tensor) -> None:
    labels = torch.zeros(2, dtype=torch.int64)
    for call in (
        lambda: operators.class_gradient(outputs, labels, torch.ones(2)),
        lambda: operators.class_scores(outputs, labels),
    ):
        with pytest.raises(RuntimeError, match="Cross entropy needs contiguous rows of outputs"):
            call()


class Texts(nn.Module):
    """The next of so many words at every place."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(CLASSES, 4), Lstm(4, 5, 1), nn.Linear(5, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        """As it is said."""
        made: Tensor = self.layers(x)
        return made


@pytest.mark.parametrize("trainer", ["recorded", "fused"])
@pytest.mark.parametrize("name", ["texts", "texts by place"])
def test_clients_train_as_by_autograd(trainer: TrainerName, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = watched_rows(monkeypatch)
    _, words = batch((10, 7), torch.float32)
    data = FederatedDataset.from_clients(train={"it": (words[:, :-1].numpy(), words[:, 1:].numpy())})
    # Two full batches, and a short one.
    section = ClientSection(batch_size=4)
    model, weights = create(Texts, 0, torch.float64)
    members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)

    def trained(trainer: TrainerName, kernels: KernelsUsed) -> Any:
        choice = TrainerChoice.of_size(trainer, 1, kernels=kernels)
        made = make(choice, model, weights, TASKS[name], section, "float32")
        (one,) = local_training.train(made, weights, members, 0.5, model.params)
        return one.updates

    wanted = trained("one_by_one", KernelsUsed())
    assert not rows
    found = trained(trainer, KernelsUsed(classes=True))
    assert rows
    assert (found.delta - wanted.delta).abs().max() < 1e-12
    assert found.loss.tolist() == pytest.approx(wanted.loss.tolist(), rel=1e-12)
    assert found.correct.tolist() == wanted.correct.tolist()
