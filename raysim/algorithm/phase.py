"""Defines a phase: one pass over the cohort whose results add up. Most rounds have one phase (fedavg.py).

`Members` builds the clients of a chunk, with their data, batches and keys, alike in every phase of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Float64s, Int64s
from raysim.client import local_training
from raysim.client.adversary import Adversary, LabelFlip, flip
from raysim.client.augmentations import augment
from raysim.client.chunk_clients import ChunkClients
from raysim.client.local_training import Trained
from raysim.client.section import ClientSection
from raysim.client.trainer import Trainer
from raysim.cohort.chunks import Chunk
from raysim.data.on_device import Examples
from raysim.models.model import Weights
from raysim.server.clipping import UNLIMITED, Limits
from raysim.server.fairness.fairness import FairWeight
from raysim.server.manifest import StatePlace
from raysim.server.state import ServerState
from raysim.server.sums import Sums


@dataclass(frozen=True)
class Broadcast:
    """What every client of the cohort receives in one phase of a round.

    round: number of finished rounds. phase: its index among the algorithm's phases. lr: the clients' learning rate in
    this round. limits: levels of clipping and zeroing. repeats: by position, the number of draws of clients drawn more
    than once. beside: vectors (P,) of a correction, or of a personalisation. places: by position, the place of the
    client's state. left_out: positions that an earlier phase of the round rejected. elsewhere: those without a part in
    this phase. fair_weights: by position, how clients enter the mean under a fair objective; otherwise empty. measures:
    the updates are only for a measurement, so client states are read and not written. configs: by position, the
    configuration that each client has drawn, if there are several.
    """

    round: int
    weights: Weights
    lr: float
    limits: Limits = UNLIMITED
    repeats: Mapping[int, int] = field(default_factory=dict)
    phase: int = 0
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    places: Mapping[int, StatePlace] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    elsewhere: frozenset[int] = frozenset()
    fair_weights: Mapping[int, FairWeight] = field(default_factory=dict)
    measures: bool = False
    configs: Mapping[int, int] = field(default_factory=dict)


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
    client at a position; None of a client without examples to score it on.
    """

    train: Trainer
    gradients: Trainer | None = None
    states: ClientStates | None = None
    keeps_updates: bool = False
    trained: Trained | None = None
    loss: Callable[[Weights, Tensor, Tensor], float] | None = None
    own: Trainer | None = None
    trainer_of: Callable[[int], Trainer] | None = None
    own_error: Callable[[Weights, int], OwnError | None] | None = None


class LocalResult(NamedTuple):
    """A chunk's part in a phase. updates: h_i (P,), once per draw, in the order of the sums' facts; often none kept."""

    sums: Sums
    updates: tuple[Tensor, ...] = ()


class Phase(NamedTuple):
    """One pass over the cohort, as two pure functions.

    broadcast(state, repeats, positions, sums): the broadcast to the clients at these positions, from the sums of the
    round's earlier phases. local: a chunk's part in the phase; its only effect is to write client states through the
    context. of: what the clients compute.
    """

    broadcast: Callable[[ServerState, Mapping[int, int], Sequence[int], Sequence[Sums]], Broadcast]
    local: Callable[[LocalContext, Examples, Broadcast, Chunk], LocalResult]
    of: Literal["training", "gradients", "losses"] = "training"

    def sending(self, change: Callable[[Broadcast, ServerState, Sequence[int], Sequence[Sums]], Broadcast]) -> Phase:
        """Return the phase whose broadcast is change(broadcast, state, positions, sums)."""

        def broadcast(
            state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
        ) -> Broadcast:
            return change(self.broadcast(state, repeats, positions, sums), state, positions, sums)

        return self._replace(broadcast=broadcast)


class Members:
    """Builds the clients of a chunk, alike in every phase of a round.

    Args:
        client: local training.
        seed: addresses the clients' draws.
        adversary, adversaries: the attack, and the positions of its clients; here, those with flipped labels.
    """

    def __init__(
        self, client: ClientSection, seed: int, adversary: Adversary | None, adversaries: frozenset[int]
    ) -> None:
        self._client, self._seed = client, seed
        self._flips = adversaries if isinstance(adversary, LabelFlip) else frozenset()

    def training_by(self, client: ClientSection) -> Members:
        """Return what builds the same clients for other local training."""
        fresh = Members(client, self._seed, None, frozenset())
        fresh._flips = self._flips
        return fresh

    def of(self, examples: Examples, broadcast: Broadcast, chunk: Chunk) -> ChunkClients:
        """Return the chunk's clients with their data, except those that an earlier phase rejected."""
        positions = _left(broadcast, chunk)
        if not len(positions):
            return ChunkClients.none()
        members = local_training.members(
            examples, positions, self._client, self._seed, broadcast.round, broadcast.weights.params
        )
        if self._flips.isdisjoint(positions.tolist()):
            return members
        each = zip(positions.tolist(), members.y.split_with_sizes(members.num_examples.tolist()), strict=True)
        return replace(members, y=torch.cat([self._labels(examples, position, y) for position, y in each]))

    def held(self, examples: Examples, broadcast: Broadcast, chunk: Chunk) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield position, x and y of the same clients, as an evaluation sees their examples: nothing is drawn."""
        positions = _left(broadcast, chunk)
        if not len(positions):
            return
        sizes, *whole = local_training.load_clients(examples, positions, broadcast.weights.params)
        each = (rows.split_with_sizes(sizes.tolist()) for rows in whole)
        for position, x, y in zip(positions.tolist(), *each, strict=True):
            yield position, augment.for_evaluation(self._client.augment, x), self._labels(examples, position, y)

    def _labels(self, examples: Examples, position: int, y: Tensor) -> Tensor:
        classes, padding = examples.dataset.num_classes, examples.dataset.y.padding
        return flip(y, classes, padding) if classes is not None and position in self._flips else y


def weighed(broadcast: Broadcast, positions: Int64s, examples: Int64s | None) -> Float64s:
    """Return the clients' weights in the round's means: their examples, or 1, unless a fair objective gave others."""
    weights = np.ones(len(positions)) if examples is None else examples.astype(np.float64)
    if broadcast.fair_weights:
        for row, position in enumerate(positions.tolist()):
            if (fair := broadcast.fair_weights.get(position)) is not None:
                weights[row] = fair.weight
    return weights


def counts(broadcast: Broadcast, positions: Int64s) -> Int64s:
    """Return how often each client was drawn."""
    if not broadcast.repeats:
        return np.ones(len(positions), np.int64)
    return np.array([broadcast.repeats.get(position, 1) for position in positions.tolist()], np.int64)


def _left(broadcast: Broadcast, chunk: Chunk) -> Int64s:
    if not broadcast.left_out and not broadcast.elsewhere:
        return np.array(chunk, np.int64)
    return np.array([p for p in chunk if p not in broadcast.left_out and p not in broadcast.elsewhere], np.int64)
