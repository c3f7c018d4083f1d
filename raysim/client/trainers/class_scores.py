"""Computes cross entropy and hits of outputs for many classes together, in C: outputs are read, and none are written.

torch writes the logarithms of all shares. The bits of a row do not depend on the others, whose labels are classes too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from raysim.client.trainers.kernel import operators
from raysim.models import task as tasks
from raysim.models.masked import MaskedCrossEntropy, MaskedHits, share, stretch
from raysim.models.task import Task

MANY = 256
"""Classes from which it is quicker: 320 rows of 2,004 take 360 us for 680 of torch's losses and NumPy's hits, and of 90
as long (Intel Xeon with AVX-512, in the cache)."""

Scorer = Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None]
"""(outputs, targets) -> loss and hits of each example, (rows,); None: the task's functions have to be called."""


def scorer(task: Task, dtype: torch.dtype) -> Scorer | None:
    """Return what scores on a CPU with a C compiler; None for other tasks than classes.

    dtype: of the outputs, for which there is a library in C. Those of another one are left to the task's functions.
    """
    if task.losses is tasks.cross_entropy and task.correct is tasks.hits:
        return partial(_scored, dtype)
    of_places = isinstance(task.losses, MaskedCrossEntropy) or task.losses is tasks.cross_entropy
    if of_places and isinstance(task.correct, MaskedHits):
        return partial(_scored_places, dtype, getattr(task.losses, "padding", None), task.correct)
    return None


def _scored(dtype: torch.dtype, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor] | None:
    made = _by_place(dtype, outputs, targets, None)
    if made is None:
        return None
    losses, right = made
    if targets.dim() == 1:
        return losses, right.to(outputs.dtype)
    return losses.flatten(1).mean(1), share(right, outputs)


def _scored_places(
    dtype: torch.dtype, padding: int | None, hits: MaskedHits, outputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor] | None:
    made = _by_place(dtype, outputs, targets, padding)
    if made is None:
        return None
    return _of_examples(*made, targets, padding, hits)


def scored_rows(task: Task, rows: Tensor, targets: Tensor, places: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return loss and hits of each example, (batch,), from the outputs of some of its places.

    Args:
        task: classes of texts with padding.
        rows: outputs of these places, (N, classes).
        targets: of all places, (batch, time).
        places: int64 (N,), which of all places; the others are padding.

    Raises:
        IndexError: a target is no class.
    """
    assert isinstance(task.losses, MaskedCrossEntropy)
    made = operators.class_scores(rows.contiguous(), targets.flatten()[places], task.losses.padding)
    if made is None:
        raise IndexError(f"A target is none of the {rows.shape[1]} classes.")
    losses = rows.new_zeros(targets.shape)
    losses.view(-1)[places] = made[0]
    right = torch.zeros_like(targets, dtype=torch.bool)
    right.view(-1)[places] = made[1]
    hits = task.correct if isinstance(task.correct, MaskedHits) else None
    each, correct = _of_examples(losses, right, targets, task.losses.padding, hits)
    return each, None if hits is None else correct


def _of_examples(
    losses: Tensor, right: Tensor, targets: Tensor, padding: int | None, hits: MaskedHits | None
) -> tuple[Tensor, Tensor]:
    """Loss and hits of each example from those of places."""
    each = losses.flatten(1).mean(1)
    if padding is not None:
        each = each * stretch(targets, padding).to(losses.dtype)
    return each, share(right if hits is None else right & hits.counts(targets), losses)


def _by_place(
    dtype: torch.dtype, outputs: Tensor, targets: Tensor, padding: int | None
) -> tuple[Tensor, Tensor] | None:
    """Losses, and whether the label's output is the largest, in the shape of the targets."""
    is_known = outputs.dtype == dtype and targets.dtype is torch.int64
    if not is_known or outputs.shape[:-1] != targets.shape or not len(outputs) or outputs.shape[-1] < MANY:
        return None
    flat = outputs.reshape(-1, outputs.shape[-1]).contiguous()
    made = operators.class_scores(flat, targets.reshape(-1).contiguous(), padding)
    return None if made is None else (made[0].view(targets.shape), made[1].view(targets.shape))
