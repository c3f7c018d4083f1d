"""The gradient of a batch's loss with respect to the outputs, by hand for the tasks' own losses.

The loss of a local batch is the mean over its b examples. What is returned is scaled so that factors that all rows
share are left to the caller: gradient = factor * returned / b.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raysim.client.trainers import class_gradient
from raysim.client.trainers.gradient_seed import gradients_from
from raysim.models import task as tasks
from raysim.models.masked import MaskedCrossEntropy, classes, stretch
from raysim.models.softmax import MANY, Softmax
from raysim.models.task import Loss, Task

LossGradient = Callable[[Tensor, Tensor], tuple[Tensor, float, Tensor | None]]
"""(outputs (rows, ...), targets (rows, ...)) -> (fresh tensor in the shape of outputs, factor, losses).

`losses` (rows,) are None where they can be computed later, from any rows together.
"""


def for_task(
    task: Task, stacked: bool = False, recorded: bool = False, in_c: torch.dtype | None = None
) -> LossGradient:
    """By hand for cross entropy and squared error, by autograd for a user's loss.

    `stacked`: rows are of several clients, so a row's bits must not depend on those beside it. `recorded`: it is called
    in a step that is recorded, which writes to no memory of earlier steps. `in_c`: cross entropy over many classes is
    computed in C for outputs of this dtype.
    """
    made = _for_task(task, stacked, recorded)
    return _in_c(made, task, in_c) if in_c is not None and has_classes(task) else made


def has_classes(task: Task) -> bool:
    """Whether the loss is cross entropy, of all places or of those that are not padding."""
    return task.losses is tasks.cross_entropy or isinstance(task.losses, MaskedCrossEntropy)


def _for_task(task: Task, stacked: bool, recorded: bool) -> LossGradient:
    softmax = Softmax(0 if stacked else MANY, keeps=not recorded)
    if task.losses is tasks.cross_entropy:
        return _cross_entropy(softmax)
    if isinstance(task.losses, MaskedCrossEntropy):
        return _masked(_cross_entropy(softmax), task.losses.padding, by_place=task.weights is not None)
    if task.losses is tasks.squared_error:
        return _squared_error
    return _by_autograd(task.losses)


def by_rows(task: Task) -> bool:
    """Whether what an example adds to a mean of losses is known to depend on its own output and the number of examples
    only, so that rows may come from many clients."""
    return task.weights is None and by_example(task)


def by_example(task: Task) -> bool:
    """Whether an example's loss is known to depend on its own output only."""
    return task.losses is tasks.squared_error or has_classes(task)


def _cross_entropy(softmax: Softmax) -> LossGradient:
    """softmax(outputs) - onehot(targets); the factor is 1 / T with T targets per example."""
    minus_ones = torch.empty(0)

    def gradient(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float, None]:
        nonlocal minus_ones
        if minus_ones.shape != targets.shape or minus_ones.dtype != outputs.dtype:
            minus_ones = outputs.new_full(targets.shape, -1.0)
        shares = softmax(outputs)
        shares.scatter_add_(-1, targets.unsqueeze(-1), minus_ones.unsqueeze(-1))
        return shares, targets.shape[0] / targets.numel(), None

    return gradient


def _masked(of_all: LossGradient, padding: int, by_place: bool) -> LossGradient:
    """Likewise, and 0 where the target is padding; the factor stays 1 / T, T all places, and rows make up for it.

    `by_place`: the batch makes up for it as a whole.
    """

    def gradient(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float, Tensor | None]:
        shares, factor, losses = of_all(outputs, classes(targets, padding))
        shares.masked_fill_((targets == padding).unsqueeze(-1), 0.0)
        by_row = _stretched(targets, padding, by_place).to(shares.dtype)
        return shares.mul_(by_row.unsqueeze(-1)), factor, losses

    return gradient


def _stretched(targets: Tensor, padding: int, by_place: bool) -> Tensor:
    """What makes up in each row for its places of padding; with the axes of the targets."""
    by_row = stretch(targets.view(1, -1) if by_place else targets, padding)
    return by_row.view(-1, *[1] * (targets.dim() - 1))


def _in_c(otherwise: LossGradient, task: Task, dtype: torch.dtype) -> LossGradient:
    """The same, by `class_gradient` for the outputs that it knows."""

    def gradient(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float, Tensor | None]:
        if not class_gradient.is_known(outputs, targets, dtype):
            return otherwise(outputs, targets)
        # All that the caller would multiply with: it need not pass over the gradient once more.
        factors = factors_of_places(task, targets, outputs.dtype)
        return class_gradient.gradient(outputs, targets, factors), float(len(targets)), None

    return gradient


def factors_of_places(task: Task, targets: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what each place's cross entropy is multiplied with in the batch's mean loss, in the shape of the targets:
    0 where a place does not count."""
    factors = torch.full(targets.shape, 1 / targets.numel(), dtype=dtype, device=targets.device)
    if not isinstance(task.losses, MaskedCrossEntropy):
        return factors
    padding = task.losses.padding
    stretched = _stretched(targets, padding, by_place=task.weights is not None)
    return (factors * stretched.to(dtype)).masked_fill(targets == padding, 0.0)


def _squared_error(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float, None]:
    """outputs - targets; the factor is 2 / m with m targets per example."""
    residual = (outputs.reshape(targets.shape) - targets).view(outputs.shape)
    return residual, 2 * targets.shape[0] / targets.numel(), None


def _by_autograd(losses: Loss) -> LossGradient:
    def gradient(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float, Tensor]:
        # Tensors of inference mode know no autograd: the outputs are copied out of it.
        with torch.inference_mode(False), torch.enable_grad():
            leaf, labels = outputs.clone().requires_grad_(), targets.clone()
            each = losses(leaf, labels)
            tasks.check_losses(each, len(labels))
            # A loss may have parameters of its own, and depend on nothing else for some batches.
            total = each.sum()
            shares = gradients_from(total, torch.ones_like(total), (leaf,))[0] if total.requires_grad else None
            if shares is None:
                tasks.raise_no_gradient(len(labels))
        return shares.clone(), 1.0, each.detach()

    return gradient
