"""Reads and writes SCAFFOLD-like client state for one chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from raysim.algorithm.phase import Broadcast, LocalContext
from raysim.client import local_training
from raysim.client.corrections.correction import ClientEnd, ClientStart, Correction
from raysim.client.local_training import Trained
from raysim.client.trainer import Client
from raysim.cohort.chunks import Chunk


@dataclass(frozen=True)
class LocalStates:
    """Client states of one chunk: read when a client's turn comes, written when its training has ended.

    before: by position, the states of clients whose training is under way.
    """

    correction: Correction
    context: LocalContext
    sent: Broadcast
    chunk: Chunk
    before: dict[int, Tensor] = field(default_factory=dict)

    def read_offset(self, client: Client) -> Tensor:
        """Return the correction's offset_i, (P,), from the client's state."""
        half, gradient = self.correction.client, None
        if half.own_gradient:
            assert self.context.gradients is not None
            taken = local_training.full_gradients(self.context.gradients, self.sent.weights, [client])
            _, gradient = next(iter(taken))
        state = self.sent.weights.params.new_zeros(0)
        if half.after is not None:
            state = self.before[client.position] = self._read(client.position)
        assert half.offset is not None
        return half.offset(ClientStart(self.sent.beside, state, gradient))

    def write_after(self, trained: Trained) -> list[Tensor | None]:
        """Write the states of clients whose training has ended; return by how much they changed, where that is summed.

        The update is what the client computed, not what an adversary sends in its place.
        """
        after = self.correction.client.after
        if after is None:
            return [None] * len(trained.clients)
        changes: list[Tensor | None] = []
        gradients = trained.updates.gradients
        for row, client in enumerate(trained.clients):
            before, place = self.before.pop(client.position), self.sent.places.get(client.position)
            gap = 1 if place is None else self.sent.round - place.round
            gradient = None if gradients is None else gradients[row]
            delta, tau = trained.updates.delta[row], client.batches.num_steps
            state = after(ClientEnd(self.sent.beside, before, delta, tau, self.sent.lr, gap, gradient))
            assert self.context.states is not None
            self.context.states.write(self._row[client.position], state)
            changes.append(state - before if self.correction.sent.sums_changes else None)
        return changes

    @cached_property
    def _row(self) -> dict[int, int]:
        return {position: row for row, position in enumerate(self.chunk)}

    def _read(self, position: int) -> Tensor:
        stored = None if self.context.states is None else self.context.states.read(position)
        params = self.sent.weights.params
        return torch.zeros_like(params) if stored is None else stored.to(params.device)
