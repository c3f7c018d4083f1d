"""The seam of local training: a *form* turns a broadcast and clients into updates.

Forms compute the same equations in different ways (one client after another, several with a client axis); they agree to
rounding, and each is one implementation behind this protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from raysim.client.batches import Batches
from raysim.models.model import Weights


@dataclass(frozen=True)
class Client:
    """A member of a chunk: its data as tensors, its batches, and a key for draws inside the module (dropout)."""

    position: int
    num_examples: int
    x: Tensor
    y: Tensor
    batches: Batches
    key: int


@dataclass(frozen=True)
class Update:
    """What local training made of a client.

    `delta` = y_i - x, and `buffers`, `counters` after training, are flat views that hold only until the next update is
    asked for. `loss` and `correct` are summed over the `seen` examples of all local batches, in float64.
    """

    delta: Tensor
    buffers: Tensor
    counters: Tensor
    loss: float
    correct: float
    seen: int


class Form(Protocol):
    """One way of running local training."""

    def train(self, broadcast: Weights, clients: Sequence[Client], lr: float) -> Iterator[Update]:
        """Yield the clients' updates in the order given; `broadcast` is not written to."""
        ...
