"""Defines what a worker brings to a phase, its trainers and client states, and what it returns for a chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from raysim.client.local_training import Trained
from raysim.client.trainer import Trainer
from raysim.models.model import Weights
from raysim.server.sums import Sums


class ClientStates(Protocol):
    """Stores the client states of one chunk in one round."""

    def read(self, position: int) -> Tensor | None:
        """Return the state that the client's last round wrote, (S P,); None before its first round."""
        ...

    def write(self, row: int, state: Tensor) -> None:
        """Store the state of the chunk's client number `row`."""
        ...


class OwnError(NamedTuple):
    """The error of a client's trained model, on so many examples of its own."""

    examples: int
    error: float


class LocalContext(NamedTuple):
    """The worker's objects for a phase.

    train: the trainer. gradients: a trainer that sums gradients, for a phase of full gradients. loss: from weights, x
    and y to the summed loss, as an evaluation takes it, for a phase of losses. states: the client states, if clients
    keep any. own: the trainer of a personalisation's own pass. keeps_updates: the result holds every update, for rules
    that need all of them. trained: the chunk's clients, if they were trained already, together with those of other
    runs. trainer_of: the trainer of each configuration, if there are several. own_error: of a model, for the training
    client at a position, and whether its update is finite; None of a client without examples to score it on.
    """

    train: Trainer
    gradients: Trainer | None = None
    states: ClientStates | None = None
    keeps_updates: bool = False
    trained: Trained | None = None
    loss: Callable[[Weights, Tensor, Tensor], float] | None = None
    own: Trainer | None = None
    trainer_of: Callable[[int], Trainer] | None = None
    own_error: Callable[[Weights, int, bool], OwnError | None] | None = None


class LocalResult(NamedTuple):
    """A chunk's part in a phase. updates: h_i (P,), once per draw, in the order of the sums' facts; often none kept."""

    sums: Sums
    updates: tuple[Tensor, ...] = ()
