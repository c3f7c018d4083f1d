"""A phase: one pass over the cohort, whose results add up. Most rounds have one; see algorithm.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from raysim.broadcast import Broadcast
from raysim.client.chunk import Trained
from raysim.client.examples import Examples
from raysim.client.form import Form
from raysim.cohort.chunks import Chunk
from raysim.server.state import ServerState
from raysim.server.sums import Sums


class ClientStates(Protocol):
    """The clients' own vectors, of one chunk in one round."""

    def read(self, position: int) -> Tensor | None:
        """What the client wrote when it last took part, (P,); None before its first time."""
        ...

    def write(self, row: int, state: Tensor) -> None:
        """Keep the vector of the chunk's client number `row`."""
        ...


class Workshop(NamedTuple):
    """What a worker has at hand.

    train: the form that trains. gradients: one that sums gradients, where a phase takes full gradients. kept: where
    updates go that will be looked at again, if they will. states: where clients remember. trained: the chunk's clients,
    where they have been trained already, with other runs'.
    """

    train: Form
    gradients: Form | None = None
    kept: list[Tensor] | None = None
    states: ClientStates | None = None
    trained: Trained | None = None


class Phase(NamedTuple):
    """`broadcast(state, repeats, positions, sums)`: what the clients at these positions receive, given the sums of the
    round's earlier phases. `local`: a chunk's part in the phase, added up.
    """

    broadcast: Callable[[ServerState, Mapping[int, int], Sequence[int], Sequence[Sums]], Broadcast]
    local: Callable[[Workshop, Examples, Broadcast, Chunk], Sums]
