"""Defines a phase: one pass over the cohort whose results add up. Most rounds have one phase (fedavg.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.local_context import LocalContext, LocalResult
from raysim.cohort.chunks import Chunk
from raysim.data.on_device import Examples
from raysim.server.state import ServerState
from raysim.server.sums import Sums


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
