"""The gradient of a batch's loss with respect to the outputs, by hand for the tasks' own losses.

The loss of a local batch is the mean over its b examples. What is returned is scaled so that factors that all rows
share are left to the caller: gradient = factor * returned / b.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from raysim.models import task as tasks
from raysim.models.task import Loss, Task

LossGradient = Callable[[Tensor, Tensor], tuple[Tensor, float, Tensor | None]]
"""(outputs (rows, ...), targets (rows, ...)) -> (fresh tensor in the shape of outputs, factor, losses).

`losses` (rows,) are None where they can be computed later, from any rows together.
"""


def for_task(task: Task) -> LossGradient:
    """By hand for cross entropy and squared error, by autograd for a user's loss."""
    if task.losses is tasks.cross_entropy:
        return cross_entropy
    if task.losses is tasks.squared_error:
        return squared_error
    return _by_autograd(task.losses)


def by_rows(task: Task) -> bool:
    """Whether an example's loss is known to depend on its own output only, so that rows may come from many clients."""
    return task.losses in (tasks.cross_entropy, tasks.squared_error)


def cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float, None]:
    """softmax(outputs) - onehot(targets); the factor is 1 / T with T targets per example."""
    gradient = torch.softmax(outputs, -1)
    labels = targets.unsqueeze(-1)
    minus_one = torch.full((), -1.0, dtype=outputs.dtype, device=outputs.device)
    gradient.scatter_add_(-1, labels, minus_one.expand(labels.shape))
    return gradient, len(targets) / targets.numel(), None


def squared_error(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float, None]:
    """outputs - targets; the factor is 2 / m with m targets per example."""
    residual = (outputs.reshape(targets.shape) - targets).view(outputs.shape)
    return residual, 2 * len(targets) / targets.numel(), None


def _by_autograd(losses: Loss) -> LossGradient:
    def gradient(outputs: Tensor, targets: Tensor) -> tuple[Tensor, float, Tensor]:
        # Tensors of inference mode know no autograd: the outputs are copied out of it.
        with torch.inference_mode(False), torch.enable_grad():
            leaf, wanted = outputs.clone().requires_grad_(), targets.clone()
            each = losses(leaf, wanted)
            (made,) = torch.autograd.grad(each.sum(), leaf)
        return made.clone(), 1.0, each.detach()

    return gradient
