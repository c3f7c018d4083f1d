"""Trains the clients of a chunk, each by the configuration that it has drawn, where there are several (FedEx)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.client_state import LocalStates
from raysim.algorithm.configuration import Configured
from raysim.algorithm.local_context import LocalContext
from raysim.algorithm.outgoing import Outgoing, just_trained
from raysim.algorithm.personal import Personal
from raysim.client import local_training
from raysim.client.corrections.correction import Correction
from raysim.client.local_training import Trained, with_windows
from raysim.client.state_vectors import StateVectors
from raysim.cohort.chunks import Chunk
from raysim.data.on_device import Examples
from raysim.models.layout import Layout


@dataclass(frozen=True)
class ChunkTraining:
    """Local training of a run; `configs`: one without FedEx."""

    configs: Sequence[Configured]
    correction: Correction
    vectors: StateVectors
    layout: Layout
    personal: Personal | None

    def train(
        self, context: LocalContext, examples: Examples, broadcast: Broadcast, chunk: Chunk
    ) -> Iterator[Outgoing]:
        """Yield the chunk's clients, those that were measured together at a time."""
        for training, own_context, own_broadcast, clients in self._parts(context, broadcast, chunk):
            states = LocalStates(self.correction, self.vectors, self.layout, own_context, own_broadcast, chunk)
            for trained in self._trained(training, states, examples, clients):
                yield just_trained(training, states, examples, trained)

    def _parts(
        self, context: LocalContext, broadcast: Broadcast, chunk: Chunk
    ) -> Iterator[tuple[Configured, LocalContext, Broadcast, Chunk]]:
        """Yield each configuration of the chunk's clients, with its trainer, its learning rate, and the clients."""
        if context.trainer_of is None:
            yield self.configs[0], context, broadcast, chunk
            return
        for j in sorted({broadcast.configs[position] for position in chunk}):
            training = self.configs[j]
            clients = tuple(position for position in chunk if broadcast.configs[position] == j)
            lr = training.client.lr_at(broadcast.round)
            yield training, context._replace(train=context.trainer_of(j)), replace(broadcast, lr=lr), clients

    def _trained(
        self, training: Configured, states: LocalStates, examples: Examples, chunk: Chunk
    ) -> Iterable[Trained]:
        context, broadcast, half = states.context, states.broadcast, self.correction.client
        if context.trained is not None:
            return [context.trained]
        clients = training.members.of(examples, broadcast, chunk)
        if half.bend is not None or half.point is not None:
            clients = clients.receiving(broadcast.beside)
        if half.windows is not None:
            clients = clients.with_each(
                partial(with_windows, half.windows, training.client.work_at(broadcast.round), broadcast.round)
            )
        if self.personal is not None:
            return self.personal.train(states, examples, clients)
        prepared = states.prepared if states.prepares else None
        start = None if half.start is None else half.start(broadcast.beside)
        return local_training.train(
            context.train, broadcast.weights, clients, broadcast.lr, self.layout, prepared, start
        )
