"""Defines a phase: one pass over the cohort whose results add up. Most rounds have one phase (federated.py).

`Members` builds the clients of a chunk, with their data, batches and keys, alike in every phase of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from torch import Tensor

from raysim.client import local_training
from raysim.client.adversary import Adversary, LabelFlip, flip
from raysim.client.local_training import Trained
from raysim.client.section import ClientSection
from raysim.client.trainer import Client, Trainer
from raysim.cohort.chunks import Chunk
from raysim.data.on_device import Examples
from raysim.models.model import Weights
from raysim.server.clipping import UNLIMITED, Limits
from raysim.server.manifest import StatePlace
from raysim.server.state import ServerState
from raysim.server.sums import Sums


@dataclass(frozen=True)
class Broadcast:
    """What every client of the cohort receives in one phase of a round.

    round: number of finished rounds. phase: its index among the algorithm's phases. lr: the clients' learning rate in
    this round. limits: levels of clipping and zeroing. repeats: by position, the number of draws of clients drawn more
    than once. beside: vectors (P,) of a correction, or of a personalisation. places: by position, the place of the
    client's state. left_out: positions that an earlier phase of the round rejected. measures: the updates are only for
    a measurement, so client states are read and not written.
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
    measures: bool = False


class ClientStates(Protocol):
    """Stores the client states of one chunk in one round."""

    def read(self, position: int) -> Tensor | None:
        """Return the state that the client's last round wrote, (S P,); None before its first round."""
        ...

    def write(self, row: int, state: Tensor) -> None:
        """Store the state of the chunk's client number `row`."""
        ...


class LocalContext(NamedTuple):
    """The worker's objects for a phase.

    train: the trainer. gradients: a trainer that sums gradients, for a phase of full gradients. states: the client
    states, if clients keep any. own: the trainer of a personalisation's own pass. keeps_updates: the result holds every
    update, for rules that need all of them. trained: the chunk's clients, if they were trained already, together with
    those of other runs.
    """

    train: Trainer
    gradients: Trainer | None = None
    states: ClientStates | None = None
    keeps_updates: bool = False
    trained: Trained | None = None
    own: Trainer | None = None


class LocalResult(NamedTuple):
    """A chunk's part in a phase. updates: h_i (P,), once per draw, in the order of the sums' facts; often none kept."""

    sums: Sums
    updates: tuple[Tensor, ...] = ()


class Phase(NamedTuple):
    """One pass over the cohort, as two pure functions.

    broadcast(state, repeats, positions, sums): the broadcast to the clients at these positions, from the sums of the
    round's earlier phases. local: a chunk's part in the phase; its only effect is to write client states through the
    context.
    """

    broadcast: Callable[[ServerState, Mapping[int, int], Sequence[int], Sequence[Sums]], Broadcast]
    local: Callable[[LocalContext, Examples, Broadcast, Chunk], LocalResult]


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
        made = Members(client, self._seed, None, frozenset())
        made._flips = self._flips
        return made

    def of(self, examples: Examples, sent: Broadcast, chunk: Chunk) -> list[Client]:
        """Return the chunk's clients with their data, except those that an earlier phase rejected."""
        positions = [position for position in chunk if position not in sent.left_out]
        if not positions:
            return []
        members = local_training.members(examples, positions, self._client, self._seed, sent.round, sent.weights.params)
        classes = examples.dataset.num_classes
        if classes is None or not self._flips:
            return members
        return [replace(c, y=flip(c.y, classes)) if c.position in self._flips else c for c in members]
