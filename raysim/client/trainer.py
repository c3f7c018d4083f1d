"""Defines the interface of local training: a *trainer* turns a broadcast and clients into updates.

Trainers compute the same equations in different ways (one client after another, several with a client axis). They agree
to rounding, and each is one implementation behind this protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.batches import Batches
from raysim.client.objective import RoundAt
from raysim.models.model import Weights


@dataclass(frozen=True)
class Client:
    """A member of a chunk: its data as tensors, its batches, and a key for draws inside the module (dropout).

    `x` and `y` may be views into data of the whole chunk, at any alignment: trainers gather, which makes fresh memory.
    `augmented` are the examples of all local steps in their order, where those are not rows of `x`. `at` is for an
    objective; None if there is none. `offset` (P,) is what a correction adds to every local gradient of the round;
    `begin` (P,) is y before the first local step, in place of x. Either all clients of a call have one, or none.
    `received` is what came beside the model, (P,) each, the same for all clients of a call, where a correction bends
    gradients. `own` (P,) is a vector of the client's own that its local steps move too. `windows` are ranges of local
    steps over which y is averaged.
    """

    position: int
    num_examples: int
    x: Tensor
    y: Tensor
    batches: Batches
    key: int
    augmented: Tensor | None = None
    offset: Tensor | None = None
    begin: Tensor | None = None
    received: Mapping[str, Tensor] = field(default_factory=dict)
    at: RoundAt | None = None
    own: Tensor | None = None
    windows: tuple[tuple[int, int], ...] = ()

    def visited_inputs(self) -> Tensor:
        """x of all local steps in their order, a row for each visit."""
        if self.augmented is not None:
            return self.augmented
        return self.x.index_select(0, torch.from_numpy(self.batches.order).to(self.x.device))


@dataclass(frozen=True)
class Updates:
    """The result of local training of k >= 1 clients, a row each.

    `delta` (k, P) = y_i - x, and `buffers` (k, B), `counters` (k, C) after training, hold only until the next
    updates are asked for. `loss` and `correct` (NaN where nothing is counted) are summed over the `seen` (k,)
    examples of all local batches, float64 (k,) on the CPU. `gradients` (k, P) are the means of the raw loss
    gradients over the client's local steps, where the trainer was made to sum them. `squared_norms` (k, G),
    float64, are |delta_i|^2 per parameter, where the trainer has them. `inverses` (k, P) are the sums, over local
    steps, of 1 over what the optimizer divided each number of the gradient by, where the trainer was made to sum
    them. `own` (k, P): where the clients' own vectors ended, where local steps move them. `samples`, (l, P) of each
    client, are the means of y over its windows, where a correction has windows.
    """

    delta: Tensor
    buffers: Tensor
    counters: Tensor
    loss: Tensor
    correct: Tensor
    seen: Int64s
    gradients: Tensor | None = None
    squared_norms: Tensor | None = None
    inverses: Tensor | None = None
    own: Tensor | None = None
    samples: tuple[Tensor, ...] | None = None


class LocalStart(NamedTuple):
    """Where a run's clients start from in a round, and their learning rate."""

    weights: Weights
    lr: float


class OneOfSeveralError(Exception):
    """One of the next clients failed; `others` counts those beside it. Its cause is what was raised."""

    def __init__(self, others: int) -> None:
        super().__init__(others)
        self.others = others


class Trainer(Protocol):
    """One way of running local training; `trains_together` says whether it has one call for all the clients that it is
    given, a whole chunk's, or trains one after another, a few of them in a call."""

    trains_together: bool

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Yield the clients' updates in the order given, one or more at a time; `broadcast` is not written to.

        `start` is what the optimizer's state starts as, (P,) each, where that is not for the optimizer to say.

        Raises:
            OneOfSeveralError: it is not known whose training failed; else what user code raised for the next client.
        """
        ...


@runtime_checkable
class LockstepTrainer(Trainer, Protocol):
    """A trainer that can train the same clients from several starts at once."""

    def train_each(self, starts: Sequence[LocalStart], clients: Sequence[Client]) -> Updates:
        """The clients' updates from each start, one start's behind the other's; no client has an `offset`."""
        ...
