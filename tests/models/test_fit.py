"""A module, a loss or initial values that do not fit are refused before the first round, with both shapes."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim

Make = Callable[..., raysim.Experiment]


class Pair(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), x


class Detached(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


def frozen() -> nn.Module:
    module = nn.Linear(5, 3)
    module.requires_grad_(False)
    return module


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Linear(5, 2), r"outputs must have shape .*\(2, 3\) for labels 0 to 2, but have shape \(2, 2\)\.$"),
        (lambda: nn.Linear(4, 3), r"failed on a batch x of 2 examples, shape \(2, 5\) .*: mat1 and mat2"),
        (lambda: Pair(5, 3), "must return one tensor, but it returned tuple"),
        (lambda: Detached(5, 3), "no gradient"),
        (nn.Linear(5, 3), "must be a function that returns a new module, but got a module"),
        (lambda: "a module", "must be a function that returns a torch.nn.Module"),
        (lambda: nn.LazyLinear(3), "is lazy"),
        (frozen, "no trainable parameter"),
    ],
)
def test_a_module_that_does_not_fit(
    model: Any, message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ModelError, match=message):
        raysim.rounds(experiment(model=None), dataset=dataset, model=model)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(4), r"as many numbers as the targets y, \(2,\), .* y is of torch.float32, .* labels are integers"),
        (np.array([[0], [1], [2], [0]]), r"y has shape \(2, 1\): one label per example has \(2,\)"),
    ],
)
def test_targets_of_another_task_are_named(y: Any, message: str, experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients({i: (np.ones((4, 5), np.float32), y) for i in range(9)})
    with pytest.raises(raysim.ModelError, match=message):
        raysim.rounds(experiment(model=None), dataset=data, model=lambda: nn.Linear(5, 3))


ROWS = np.eye(3, dtype=int)[[0, 1, 2, 0]]


@pytest.mark.parametrize(
    ("y", "outputs", "shapes"),
    [
        (ROWS, 3, r"\(2, 3, 2\) for targets y of shape \(2, 3\) and labels 0 to 1, but have \(2, 3\)"),
        (ROWS.argmax(1)[:, None], 3, r"\(2, 1, 3\) .* but have \(2, 3\)"),
        (ROWS[:, 0], 1, r"\(2, 2\) .* but have \(2, 1\)"),
    ],
    ids=["one-hot", "column", "one output for two classes"],
)
def test_outputs_of_which_none_is_that_of_a_label_are_refused_with_any_loss(
    y: Any, outputs: int, shapes: str, experiment: Make
) -> None:
    """The largest output is compared with the label: accuracy would be of other pairs, or of a class that has none."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.sum(1) - targets.reshape(len(targets), -1).sum(1)) ** 2

    def rounds(y: Any) -> Iterator[raysim.Round]:
        data = raysim.FederatedDataset.from_clients({i: (np.ones((4, 5), np.float32), y) for i in range(9)})
        return raysim.rounds(experiment(model=None), dataset=data, model=lambda: nn.Linear(5, outputs), loss=loss)

    with pytest.raises(raysim.ModelError, match=f"{shapes}.* y.argmax.* floating-point numbers"):
        rounds(y)
    rounds(y.astype("float32"))


class Transposed(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).T


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_outputs_of_a_regression_are_the_targets_example_by_example(shape: tuple[int, ...], experiment: Make) -> None:
    """As many numbers in another order would be compared with those of other targets."""
    y = np.ones((4, *shape), np.float32)
    data = raysim.FederatedDataset.from_clients({i: (np.ones((4, 5), np.float32), y) for i in range(9)})
    swapped = nn.Sequential(nn.Linear(5, 6), nn.Unflatten(1, (3, 2)))
    model = Transposed(5, 3) if shape == (3,) else swapped
    with pytest.raises(raysim.ModelError, match=r"as many numbers as the targets y, .*, example by example"):
        raysim.rounds(experiment(model=None), dataset=data, model=lambda: copy.deepcopy(model))
    flat = raysim.rounds(experiment(model=None), dataset=data, model=lambda: nn.Linear(5, y[0].size))
    assert next(flat).metrics["clients"] == 7


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, targets: outputs.sum(), r"one loss per example, shape \(2,\), but got \(\)"),
        (lambda outputs, targets: (outputs - targets).sum(1), "The loss failed on outputs of shape"),
    ],
)
def test_a_loss_that_does_not_fit(loss: Any, message: str, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ModelError, match=message):
        raysim.rounds(experiment(), dataset=dataset, loss=loss)


def test_initial_values_that_do_not_fit(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ModelError, match=r"'bias' of shape \(3,\) is missing"):
        raysim.rounds(
            experiment(model=None), dataset=dataset, model=lambda: nn.Linear(5, 3), params={"weight": np.zeros((3, 5))}
        )


def test_neither_section_nor_argument(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match="no \\[model\\] section, so model= must be passed"):
        raysim.rounds(experiment(model=None), dataset=dataset)
    with pytest.raises(raysim.ExperimentError, match="no \\[data\\] section, so dataset= must be passed"):
        raysim.rounds(experiment())


def test_a_cohort_larger_than_the_population(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match="size = 21 and 20 training clients"):
        raysim.rounds(experiment(cohort={"size": 21}), dataset=dataset)


def test_a_split_that_is_not_there(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.DataError, match="validation"):
        raysim.rounds(experiment(evaluation={"split": "validation"}), dataset=dataset)


FACTOR = torch.ones((), requires_grad=True)
"""A parameter of a loss's own."""


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "fused"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda losses: losses.mean()[None], r"one loss per example, shape \(4,\), but got \(1,\)"),
        (lambda losses: losses.mean(), r"shape \(4,\), but got \(\)\. A loss of torch.nn does so by reduction='none'"),
        (lambda losses: losses[1:], r"shape \(4,\), but got \(3,\)"),
        (lambda losses: losses[:, None], r"shape \(4,\), but got \(4, 1\)"),
        (lambda losses: losses.detach(), r"batch of 4 examples does not depend on the module's parameters"),
        (lambda losses: losses.detach() * FACTOR, r"batch of 4 examples does not depend on the module's parameters"),
    ],
    ids=["mean", "scalar", "left out", "column", "detached", "own parameter"],
)
def test_a_loss_that_does_not_fit_for_some_batches_alone(
    change: Any, message: str, trainer: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """The first examples are two."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return change(losses) if len(targets) == 4 else losses

    begun = raysim.rounds(experiment(engine={"workers": 0, "trainer": trainer}), dataset=dataset, loss=loss)
    with pytest.raises(raysim.ClientError, match=message):
        next(begun)


def test_a_loss_that_is_a_scalar_for_three_examples_is_warned_of(
    dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return losses.mean() if len(targets) == 3 else losses

    with caplog.at_level("WARNING"):
        raysim.rounds(experiment(), dataset=dataset, loss=loss)
    assert re.search(r"fails on a batch of 3 examples \(.*shape \(3,\), but got \(\).*not on one of 2", caplog.text)


class DetachedByLength(nn.Linear):
    """Its outputs depend on no parameter in batches of four."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(x)
        return outputs.detach() if len(x) == 4 else outputs


def test_a_module_without_gradients_for_some_batches_alone(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    begun = raysim.rounds(experiment(model=None), dataset=dataset, model=lambda: DetachedByLength(5, 3))
    with pytest.raises(raysim.ClientError, match=r"batch of 4 examples does not depend on the module's parameters"):
        next(begun)
