"""What a chunk's clients remember, between the files that hold it and the correction that makes sense of it."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.broadcast import Broadcast
from raysim.client import chunk as local_training
from raysim.client.corrections.correction import Begins, Correction, Ended
from raysim.client.form import Client
from raysim.cohort.chunks import Chunk
from raysim.phase import ClientStates, Workshop


class Remembered:
    """What the chunk's clients remember: read when a client's turn comes, written when it ends."""

    def __init__(self, correction: Correction, workshop: Workshop, sent: Broadcast, chunk: Chunk) -> None:
        self._correction, self._workshop, self._sent = correction, workshop, sent
        self._row = {position: row for row, position in enumerate(chunk)}
        self._held: dict[int, Tensor] = {}

    def offset(self, client: Client) -> Tensor:
        """The correction's offset_i."""
        correction, own = self._correction, None
        if correction.own_gradient:
            assert self._workshop.gradients is not None
            taken = local_training.full_gradients(self._workshop.gradients, self._sent.weights, [client])
            _, own = next(iter(taken))
        state = self._sent.weights.params.new_zeros(0)
        if correction.after is not None:
            state = self._held[client.position] = self._state(client.position)
        assert correction.offset is not None
        return correction.offset(Begins(self._sent.beside, state, own))

    def end(self, position: int, delta: Tensor, tau: int, gradient: Tensor | None) -> Tensor | None:
        """Write the client's state; what it changed by, where that is summed."""
        correction, sent = self._correction, self._sent
        if correction.after is None:
            return None
        before = self._held.pop(position)
        place = sent.places.get(position)
        gap = 1 if place is None else sent.round - place.round
        after = correction.after(Ended(sent.beside, before, delta, tau, sent.lr, gap, gradient))
        assert self._workshop.states is not None
        self._workshop.states.write(self._row[position], after)
        return after - before if correction.sums_changes else None

    def _state(self, position: int) -> Tensor:
        states: ClientStates | None = self._workshop.states
        read = None if states is None else states.read(position)
        params = self._sent.weights.params
        return torch.zeros_like(params) if read is None else read.to(params.device)
