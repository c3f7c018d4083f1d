"""Computes cross entropy and hits of rows with places that do not count: texts padded to one length.

An example's loss is the sum over its places that are not padding, divided by all its T places. So every real place of a
batch has the same weight, and padding changes nothing. Hits are counted at labels that are neither padding nor in
`uncounted`; accuracy is hits over such places (Charles et al. 2021, A.1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.models import softmax


@dataclass(frozen=True)
class MaskedCrossEntropy:
    """(outputs (batch, time, classes), targets (batch, time)) -> losses (batch,)."""

    padding: int

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the losses; see the module's docstring."""
        flat = softmax.cross_entropy(outputs.flatten(0, -2), targets.flatten())
        # Not a product: a place of padding may have any loss, infinities included.
        real = torch.where(targets == self.padding, 0.0, flat.view(targets.shape))
        return real.flatten(1).mean(1)


@dataclass(frozen=True)
class MaskedHits:
    """(outputs, targets) -> hits at places that count, over all T places; (batch,)."""

    uncounted: tuple[int, ...]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the hits; see the module's docstring."""
        right = (outputs.argmax(-1) == targets) & self.counts(targets)
        return right.to(outputs.dtype).flatten(1).mean(1)

    def counts(self, targets: Tensor) -> Tensor:
        """Return whether accuracy counts a place; bool, in the shape of targets."""
        found = torch.ones_like(targets, dtype=torch.bool)
        for label in self.uncounted:
            found &= targets != label
        return found

    def counted(self, targets: Tensor) -> Tensor:
        """Return the places that count over all T places; float64 (batch,)."""
        return self.counts(targets).double().flatten(1).mean(1)
