"""Defines outgoing clients: those of a chunk that were measured together, on their way from training to the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.client_state import LocalStates
from raysim.algorithm.configuration import Configured
from raysim.algorithm.uploads import Uploads
from raysim.client.local_training import Trained
from raysim.data.on_device import Examples
from raysim.server.accumulator import Compressed, Contributions


class Outgoing(NamedTuple):
    """Clients that were measured together; stages replace what they change. Sequences have an entry for each client.
    Uploads and contributions are there once their stage has made them.

    training: the local training that they had. states: reads and writes their states. padding, id_of: of the data, see
    `contribution_rule`. trained: their updates as trained. sent: as they are sent. changes: of their states, if these
    are summed. compressed: what is sent in place of the updates. messages: encoded updates; empty
    without. of_correction, of_transforms, rests: what the clients' states become; see `LocalStates.write`.
    """

    training: Configured
    states: LocalStates
    padding: int | None
    id_of: Callable[[int], str]
    trained: Trained
    sent: Trained
    changes: Sequence[Tensor | None]
    of_correction: Sequence[Tensor | None]
    of_transforms: Sequence[Sequence[Tensor]]
    rests: Sequence[Tensor | None]
    uploads: Uploads | None = None
    contributions: Contributions | None = None
    compressed: Compressed | None = None
    messages: Sequence[Tensor | None] = ()

    @property
    def broadcast(self) -> Broadcast:
        """The broadcast, with the learning rate of these clients."""
        return self.states.broadcast


def just_trained(training: Configured, states: LocalStates, examples: Examples, trained: Trained) -> Outgoing:
    """Return trained clients before any stage."""
    nothing = (None,) * len(trained.clients)
    padding, id_of = examples.dataset.y.padding, examples.dataset.train.id_of
    none_kept: Sequence[Sequence[Tensor]] = ((),) * len(trained.clients)
    return Outgoing(training, states, padding, id_of, trained, trained, nothing, nothing, none_kept, nothing)
