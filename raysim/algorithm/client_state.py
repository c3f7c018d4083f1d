"""Reads and writes the client states of one chunk: control variates, error feedback, models of the clients' own.

A client's state is a matrix (S, P), a row for each vector that it keeps (client/state_vectors.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from raysim.algorithm.phase import Broadcast, LocalContext
from raysim.client import local_training
from raysim.client.corrections.correction import ClientEnd, ClientStart, Correction
from raysim.client.local_training import Trained, working_on
from raysim.client.state_vectors import StateVectors
from raysim.client.trainer import Client
from raysim.cohort.chunks import Chunk
from raysim.models.layout import Layout

X0 = "x_0"
"""Name of the initial model among the vectors beside the model, where a personalisation needs it."""


@dataclass(frozen=True)
class LocalStates:
    """Client states of one chunk: read before a client trains, written after its training.

    vectors: the vectors that a client keeps. before: by position, the states of clients in training.
    """

    correction: Correction
    vectors: StateVectors
    layout: Layout
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
        if self.vectors.correction:
            state = self._before(client.position)[0]
        assert half.offset is not None
        with working_on(client.position):
            return half.offset(ClientStart(self.sent.beside, state, gradient, self.layout))

    def read_of_transforms(self, client: Client) -> tuple[Tensor, ...]:
        """Return the vectors (P,) that the client keeps for transforms."""
        if not self.vectors.transforms:
            return ()
        first = int(self.vectors.correction)
        return tuple(self._before(client.position)[first : first + len(self.vectors.transforms)])

    def read_own(self, position: int) -> Tensor:
        """Return the vector (P,) that the client keeps for itself; x_0 before its first round, or if it keeps none."""
        return self._before(position)[-1] if self.vectors.own else self._initial

    def write_after(self, trained: Trained, of_transforms: Sequence[Sequence[Tensor]]) -> list[Tensor | None]:
        """Write the states of trained clients; return the changes of the correction's vectors, if they are summed.

        The states follow from the clients' updates before transforms and attacks.

        Args:
            trained: the clients with their updates.
            of_transforms: by client, the vectors (P,) that it keeps for transforms.
        """
        if not self.vectors.num:
            return [None] * len(trained.clients)
        changes: list[Tensor | None] = []
        for row, (client, kept) in enumerate(zip(trained.clients, of_transforms, strict=True)):
            state, change = list(kept), None
            if self.vectors.correction:
                before = self._before(client.position)[0]
                state.insert(0, self._after(trained, row, before))
                change = state[0] - before if self.correction.sent.sums_changes else None
            state.extend(trained.own[row : row + 1])
            assert self.context.states is not None
            if not self.sent.measures:
                self.context.states.write(self._row[client.position], state[0] if len(state) == 1 else torch.cat(state))
            self.before.pop(client.position, None)
            changes.append(change)
        return changes

    def _after(self, trained: Trained, row: int, before: Tensor) -> Tensor:
        client, updates, after = trained.clients[row], trained.updates, self.correction.client.after
        assert after is not None
        place = self.sent.places.get(client.position)
        gap = 1 if place is None else self.sent.round - place.round
        gradient = None if updates.gradients is None else updates.gradients[row]
        delta, tau, lr = updates.delta[row], client.batches.num_steps, self.sent.lr
        with working_on(client.position):
            return after(ClientEnd(self.sent.beside, before, delta, tau, lr, gap, gradient, self.layout))

    @cached_property
    def _row(self) -> dict[int, int]:
        return {position: row for row, position in enumerate(self.chunk)}

    def _before(self, position: int) -> Tensor:
        """Return the state (S, P) that the client's last round wrote; before its first round zeros, and x_0."""
        if position not in self.before:
            stored = None if self.context.states is None else self.context.states.read(position)
            params = self.sent.weights.params
            shape = self.vectors.num, len(params)
            self.before[position] = params.new_zeros(shape) if stored is None else stored.to(params.device).view(shape)
            if stored is None and self.vectors.own:
                self.before[position][-1] = self._initial
        return self.before[position]

    @property
    def _initial(self) -> Tensor:
        """x_0, or x where its unsent groups are all that is used: the server's stay those of x_0."""
        return self.sent.beside.get(X0, self.sent.weights.params)
