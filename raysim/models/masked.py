"""Cross entropy and hits where some places of a row do not count: texts padded to one length.

An example's loss is the sum over its places that are not padding, divided by all of its T places: so every real place
of a batch weighs alike, and a place of padding changes nothing. Hits are counted where the label is neither padding nor
one of the `uncounted`, and accuracy is hits over such places (Charles et al. 2021, A.1).
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
        """See the module's head."""
        flat = softmax.cross_entropy(outputs.flatten(0, -2), targets.flatten())
        # Not a product: a place of padding may have any loss, infinities included.
        real = torch.where(targets == self.padding, 0.0, flat.view(targets.shape))
        return real.flatten(1).mean(1)


@dataclass(frozen=True)
class MaskedHits:
    """(outputs, targets) -> hits at places that count, over all T places; (batch,)."""

    uncounted: tuple[int, ...]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """See the module's head."""
        right = (outputs.argmax(-1) == targets) & self.counts(targets)
        return right.to(outputs.dtype).flatten(1).mean(1)

    def counts(self, targets: Tensor) -> Tensor:
        """Whether accuracy counts a place; bool, in the shape of targets."""
        found = torch.ones_like(targets, dtype=torch.bool)
        for label in self.uncounted:
            found &= targets != label
        return found

    def counted(self, targets: Tensor) -> Tensor:
        """Places that count over all T places; float64 (batch,)."""
        return self.counts(targets).double().flatten(1).mean(1)
