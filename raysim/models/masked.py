"""Computes cross entropy and hits of rows with places that do not count: texts padded to one length.

An example's loss is its mean over the places that are not padding, and 0 if all are. So the number of places to which
texts are padded changes nothing, and examples weigh alike, as images do: a full batch of every client is still gradient
descent on all examples. Hits are counted at labels that are neither padding nor in `uncounted`; accuracy is hits over
such places (Charles et al. 2021, A.1). Where a batch's mean is over places and not over examples, each example's loss
weighs as many as it has (`Task.weights`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.models import softmax
from raysim.models.argmax import argmax


@dataclass(frozen=True)
class MaskedCrossEntropy:
    """(outputs (batch, time, classes), targets (batch, time)) -> losses (batch,)."""

    padding: int

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the losses; see the module's docstring."""
        flat = softmax.cross_entropy(outputs.flatten(0, -2), classes(targets, self.padding).flatten())
        # Not a product: a place of padding may have any loss, infinities included.
        real = torch.where(targets == self.padding, 0.0, flat.view(targets.shape))
        return real.flatten(1).mean(1) * stretch(targets, self.padding).to(real.dtype)

    def places(self, targets: Tensor) -> Tensor:
        """Return how many places of each row are not padding; float64 (batch,)."""
        return (targets != self.padding).flatten(1).sum(1, dtype=torch.float64)


def classes(targets: Tensor, padding: int) -> Tensor:
    """Return the targets with class 0 in place of padding, which need not be a class."""
    return targets.masked_fill(targets == padding, 0)


def stretch(targets: Tensor, padding: int) -> Tensor:
    """Return T / (places that are not padding) of each row of T places, float64 (batch,): exactly 1 for a full row.

    A row of padding alone, which has no loss, has T.

    >>> stretch(torch.tensor([[1, 2], [1, 0], [0, 0]]), padding=0).tolist()
    [1.0, 2.0, 2.0]
    """
    places = (targets != padding).flatten(1)
    return places.shape[1] / places.sum(1, dtype=torch.float64).clamp(min=1)


def share(right: Tensor, outputs: Tensor) -> Tensor:
    """Return the share of each row's places that are True, (batch,), in the outputs' dtype: at least in float32.

    A module's outputs may be of a narrower one, whose shares have two digits.

    >>> share(torch.tensor([[True, False, False]]), torch.zeros(1, dtype=torch.bfloat16)).tolist()
    [0.3333333432674408]
    """
    return right.to(torch.promote_types(outputs.dtype, torch.float32)).flatten(1).mean(1)


@dataclass(frozen=True)
class MaskedHits:
    """(outputs, targets) -> hits at places that count, over all T places; (batch,)."""

    uncounted: tuple[int, ...]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the hits; see the module's docstring."""
        right = (argmax(outputs) == targets) & self.counts(targets)
        return share(right, outputs)

    def counts(self, targets: Tensor) -> Tensor:
        """Return whether accuracy counts a place; bool, in the shape of targets."""
        found = torch.ones_like(targets, dtype=torch.bool)
        for label in self.uncounted:
            found &= targets != label
        return found

    def counted(self, targets: Tensor) -> Tensor:
        """Return the places that count over all T places; float64 (batch,)."""
        return self.counts(targets).double().flatten(1).mean(1)
