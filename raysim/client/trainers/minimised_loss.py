"""Says what clients minimise, and so which trainers can: the task's loss, a script's, or an objective."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raysim.client.objective import LocalObjective
from raysim.client.trainers.output_objectives import LossOfOutputs, obstacle
from raysim.client.trainers.repeats import repeats
from raysim.config.global_draws import draws
from raysim.models.task import Loss, Task

ROWS = 5
"""Examples on which a loss is tried: one that mistakes the batch for another axis does not fit them all."""


@dataclass(frozen=True)
class Minimised:
    """What clients minimise.

    task: its losses, for trainers that hold outputs and targets; where there is an objective, those are the
    objective's. objective: the same with the module at hand; None where the task's losses say it all. obstacle: why the
    objective needs the module, and the task's losses do not say it; None where they do.
    """

    task: Task
    objective: LocalObjective | None = None
    obstacle: str | None = None


def recognise(task: Task, built_in: Task, outputs: Tensor | None, targets: Tensor) -> Task:
    """The built-in task where the given one repeats it in words of its own.

    Args:
        task: with a script's loss, maybe.
        built_in: the data's own.
        outputs: of a module, for these targets; None: it fails.
        targets: of some examples.
    """
    if task == built_in or outputs is None or built_in.weights is not None:
        return task
    return built_in if _tried(task.losses, built_in.losses, outputs, targets) else task


def minimised_loss(
    task: Task, built_in: Task, objective: LocalObjective | None, outputs: Tensor | None, targets: Tensor
) -> Minimised:
    """What clients minimise; see `recognise` for the arguments."""
    if objective is None:
        return Minimised(task)
    if outputs is None:
        return Minimised(task, objective, "cannot be tried without the module")
    loss = LossOfOutputs(objective)
    with draws():
        if why := obstacle(objective, *_batch(outputs, targets)):
            return Minimised(task, objective, why)
    if built_in.weights is None and _tried(loss.unchecked, built_in.losses, outputs, targets):
        return Minimised(built_in)
    return Minimised(replace(task, losses=loss, weights=None), objective)


def _tried(loss: Loss, built_in: Loss, outputs: Tensor, targets: Tensor) -> bool:
    with draws():
        return repeats(loss, built_in, *_batch(outputs, targets))


def _batch(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """`ROWS` examples: the given targets in turn, and any outputs in the shape of the given."""
    rows = torch.arange(ROWS) % len(targets)
    like = torch.linspace(-1, 1, ROWS * outputs[0].numel(), dtype=outputs.dtype)
    return like.view(ROWS, *outputs.shape[1:]).requires_grad_(), targets[rows]
