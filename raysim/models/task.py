"""Defines tasks: the loss to minimise and the predictions to count, from outputs and targets.

classification: integer targets. Loss is the cross entropy, a prediction is correct if the largest logit is the label.
Outputs (batch, classes) with targets (batch,), or (batch, time, classes) with (batch, time): then an example's loss and
correctness are means over time; for labels that mark padding see masked.py.
regression: real targets. Loss is the squared error, averaged over an example's outputs; nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from raysim.config.form import has_values
from raysim.config.global_draws import draws
from raysim.config.own_generators import OwnGenerators
from raysim.config.plain import shown
from raysim.config.repetition import check_repetition, copied
from raysim.config.unwritten import check_unwritten, version, versions
from raysim.errors import ModelError
from raysim.models import softmax
from raysim.models.argmax import argmax
from raysim.models.masked import MaskedCrossEntropy, MaskedHits, share

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> (batch,) losses."""


@dataclass(frozen=True)
class Task:
    """`losses` and `correct` map (outputs, targets) to one number per example, shape (batch,).

    `counted` maps targets to the share of each example's places that accuracy counts, float64 (batch,); None: all of
    them. Accuracy is the sum of `correct` over the sum of `counted`. `weights` maps targets to what each example's loss
    weighs in a mean of losses, float64 (batch,); None: all weigh alike.
    """

    losses: Loss
    correct: Loss | None
    counted: Callable[[Tensor], Tensor] | None = None
    weights: Callable[[Tensor], Tensor] | None = None

    def losses_of(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses, (batch,), where accuracy and metrics of the same batch follow.

        Raises:
            ValueError: the function wrote to its arguments, or not one loss per example came back.
        """
        before = versions(outputs, targets)
        losses = self.losses(outputs, targets)
        check_unwritten("loss(outputs, targets)", before, {"outputs": outputs, "targets": targets})
        check_losses(losses, len(targets))
        return losses

    def mean(self, losses: Tensor, targets: Tensor, among: Tensor) -> Tensor:
        """Return the examples' part in the mean loss of a batch: the means of its pieces add up to its own.

        Args:
            losses: of the examples, (n,).
            targets: theirs.
            among: the whole batch's targets.
        """
        if self.weights is None:
            return losses.mean() if len(among) == len(targets) else losses.sum() / len(among)
        total = self.weights(among).sum().clamp(min=1)
        return losses @ (self.weights(targets) / total).to(losses.dtype)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy per example, averaged over a time axis if there is one.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2])).exp().round(decimals=4).tolist()
    [4.0]
    """
    if targets.dim() == 1:
        return softmax.cross_entropy(outputs, targets)
    flat = softmax.cross_entropy(outputs.flatten(0, -2), targets.flatten())
    return flat.view(targets.shape).flatten(1).mean(1)


def hits(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 if the largest logit is the target, else 0; averaged over a time axis if there is one.

    >>> hits(torch.tensor([[0.0, 9.0], [9.0, 0.0]]), torch.tensor([1, 1])).tolist()
    [1.0, 0.0]
    """
    right = argmax(outputs) == targets
    return right.to(outputs.dtype) if targets.dim() == 1 else share(right, outputs)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (output - target)^2 averaged over an example's outputs.

    >>> squared_error(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0])).tolist()
    [0.0, 4.0]
    """
    # A module with one output gives (batch, 1), which would broadcast against (batch,) to (batch, batch).
    squares = (outputs.reshape(targets.shape) - targets) ** 2
    return squares.flatten(1).mean(1) if squares.dim() > 1 else squares


def task_for(
    num_classes: int | None,
    loss: Loss | None,
    padding: int | None = None,
    uncounted: tuple[int, ...] = (),
    by_place: bool = False,
) -> Task:
    """Return the data's task, with the user's loss in place of the default, if any.

    Args:
        num_classes: None: regression.
        loss: the user's.
        padding: the label of places that neither loss nor accuracy counts.
        uncounted: further labels that accuracy does not count.
        by_place: whether the places that are not padding weigh alike; the user's loss is averaged over examples.
    """
    if (name := _class_name(loss)) is not None:
        raise ModelError(
            f"loss= must be a function of outputs and targets, but got the class {name}: pass what it makes, such as "
            f"{name}(reduction='none')."
        )
    if loss is not None and not callable(loss):
        raise ModelError(f"loss= must be a function of outputs and targets, but got {shown(loss)}.")
    if num_classes is None:
        return Task(loss or squared_error, None)
    if padding is not None or uncounted:
        default = cross_entropy if padding is None else MaskedCrossEntropy(padding)
        hits_that_count = MaskedHits(uncounted if padding is None else (padding, *uncounted))
        weights = default.places if by_place and loss is None and isinstance(default, MaskedCrossEntropy) else None
        return Task(loss or default, hits_that_count, hits_that_count.counted, weights)
    return Task(loss or cross_entropy, hits)


NO_GRADIENT = (
    "does not depend on the module's parameters, so it has no gradient: look in forward and in the loss for detach(), "
    "no_grad(), set_grad_enabled(False), requires_grad_(False) and the like"
)
"""What is wrong with a loss, and what to do."""


def check_losses(losses: object, batch: int, what: str = "loss(outputs, targets)") -> None:
    """Check the losses of a batch, in training too: a function may return others for some batches alone.

    Args:
        losses: what the function returned.
        batch: number of examples.
        what: names the function, as the message begins.

    Raises:
        ValueError: it is not one loss per example.
    """
    # First: a nested tensor has no shape to ask for.
    if isinstance(losses, Tensor) and not has_values(losses):
        raise ValueError(f"{what} must return a dense tensor with values, but got {shown(losses)}.")
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (batch,):
        got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        mean = " A loss of torch.nn does so by reduction='none'." if got == () else ""
        raise ValueError(f"{what} must return one loss per example, shape ({batch},), but got {got}.{mean}")
    if not losses.is_floating_point():
        raise ValueError(f"{what} must return real numbers, but they are of {losses.dtype}.")


def check_depends(gradients: Iterable[Tensor | None], batch: int) -> None:
    """ValueError if there is no gradient at all; `batch`: number of examples of which they are."""
    if all(gradient is None for gradient in gradients):
        raise_no_gradient(batch)


def raise_no_gradient(batch: int) -> NoReturn:
    """Raise ValueError: the loss of a batch of so many examples has no gradient."""
    raise ValueError(
        f"The loss of a batch of {batch} example{'s'[: batch != 1]} {NO_GRADIENT}. Where a batch shall not count, its "
        f"losses are 0 times the outputs' sums."
    )


def _in_place(outputs: object) -> str:
    """Return what a module returned in place of one tensor, and what to do where it returned several."""
    several = isinstance(outputs, tuple | list | Mapping)
    hint = " Wrap it in a module whose forward returns the one that the loss takes." if several else ""
    return f"{type(outputs).__name__}.{hint}"


def _class_name(loss: object) -> str | None:
    """Return the name of a class; None of anything else."""
    return loss.__name__ if isinstance(loss, type) else None


def _is_row_by_row(outputs: Tensor, targets: Tensor) -> bool:
    """Whether both have the same numbers of each example, in one order: in one shape, but for dimensions of 1, or flat.

    >>> y = torch.zeros(4, 3)
    >>> [_is_row_by_row(torch.zeros(*shape), y) for shape in [(4, 3), (4, 1, 3), (12, 1), (3, 4)]]
    [True, True, False, False]
    """
    if outputs.numel() != targets.numel() or outputs.shape[:1] != targets.shape[:1]:
        return False
    own, wanted = ([size for size in one.shape[1:] if size > 1] for one in (outputs, targets))
    return own == wanted or len(own) <= 1 or len(wanted) <= 1


def _has_hits(outputs: Tensor, targets: Tensor, num_classes: int) -> bool:
    """Whether each label has a row of outputs, one of every class: where not, nothing says what is right.

    >>> y = torch.zeros(4, dtype=torch.long)
    >>> [_has_hits(torch.zeros(*shape), y, 2) for shape in [(4, 2), (4, 3), (4, 1), (4,), (4, 1, 2)]]
    [True, True, False, False, False]
    """
    fits = outputs.dim() == targets.dim() + 1 and outputs.shape[:-1] == targets.shape
    return fits and outputs.shape[-1] >= num_classes


def check_fit(task: Task, outputs: Tensor, targets: Tensor, num_classes: int | None, own_loss: bool) -> None:
    """Raise ModelError unless outputs and losses have the shapes that the task is defined for."""
    if not isinstance(outputs, Tensor):
        raise ModelError(f"The module must return one tensor, but it returned {_in_place(outputs)}")
    batch = targets.shape[0]
    if not own_loss:
        if num_classes is None:
            fits = _is_row_by_row(outputs, targets)
            rule = f"have as many numbers as the targets y, {tuple(targets.shape)}, example by example"
            why = f" y is of {targets.dtype}, which makes this a regression: class labels are integers."
        else:
            fits = _has_hits(outputs, targets, num_classes)
            rule = f"have shape (..., classes) = {(*targets.shape, num_classes)} for labels 0 to {num_classes - 1}"
            why = (
                f" y has shape {tuple(targets.shape)}: one label per example has {(batch,)}, and one-hot rows become "
                f"labels by y.argmax(axis=1)."
            ) * (targets.dim() > 1)
        if not fits:
            raise ModelError(f"The module's outputs must {rule}, but have shape {tuple(outputs.shape)}.{why}")
    elif num_classes is not None and not _has_hits(outputs, targets, num_classes):
        raise ModelError(
            f"With integer targets raysim counts how often the largest output is the label, so outputs must have shape "
            f"{(*targets.shape, num_classes)} for targets y of shape {tuple(targets.shape)} and labels 0 to "
            f"{num_classes - 1}, but have {tuple(outputs.shape)}. Classes in one-hot rows are labels as "
            f"y.argmax(axis=1). Other targets, such as of one output for two classes, or several labels an example, "
            f"are passed to loss= as floating-point numbers, y.astype('float32'): then there is no accuracy, and "
            f"metrics= records what else is wanted."
        )
    # By value too, because torch does not count writes through NumPy or `.data`; its count sees writes of equal values.
    before = [(version(value), value.detach().clone()) for value in (outputs, targets)]
    with draws() as drew:
        losses = task.losses(outputs, targets)
        drawn, own, once = drew(), OwnGenerators(task.losses), copied(losses)
        again = task.losses(outputs, targets) if own_loss and not drawn else losses
        drew_own = own.drew()
    for name, value, (written, old) in zip(("outputs", "targets"), (outputs, targets), before, strict=True):
        if version(value) != written or not torch.equal(old.nan_to_num(), value.detach().nan_to_num()):
            raise ModelError(
                f"loss(outputs, targets) must not write to {name}, of which accuracy and metrics are too, but it did: "
                f"work on a copy, {name}.clone()."
            )
    if drawn:
        raise ModelError(
            "loss(outputs, targets) drew from a global generator (of torch, NumPy or Python), whose draws differ from "
            "worker to worker: a loss of draws is an objective=, which has at.generator."
        )
    try:
        check_losses(losses, batch)
    except ValueError as error:
        raise ModelError(str(error)) from None
    if torch.is_grad_enabled() and not _follows(losses, outputs):
        raise ModelError(f"The loss {NO_GRADIENT}.")
    what, remedy = "loss(outputs, targets)", "A loss of draws is an objective=, which has at.generator."
    check_repetition(what, once, again, ModelError, remedy, drew_own)


def _follows(losses: Tensor, outputs: Tensor) -> bool:
    """Whether the losses have a gradient by the outputs; one by parameters of the loss's own trains nothing."""
    if not (losses.requires_grad and outputs.requires_grad):
        return False
    (gradient,) = torch.autograd.grad(losses.sum(), outputs, retain_graph=True, allow_unused=True)
    return gradient is not None
