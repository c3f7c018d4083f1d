"""Carries out a personalisation: clients' training with vectors of their own, and their personal models."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from raysim.algorithm.algorithm import Algorithm, PersonalModels
from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.client_state import X0, LocalStates
from raysim.algorithm.local_context import LocalContext
from raysim.algorithm.members import Members
from raysim.algorithm.phase import Phase
from raysim.client import local_training
from raysim.client.chunk_clients import ChunkClients
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import Correction
from raysim.client.local_training import Trained, with_norms
from raysim.client.personalisation.personalisation import Ended, PersonalAt, Personalisation
from raysim.client.section import ClientSection
from raysim.client.state_vectors import StateVectors
from raysim.client.trainer import Client
from raysim.cohort.sampler import State
from raysim.data.on_device import Examples
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.models.vectors import squared_norm
from raysim.server import manifest
from raysim.server.state import ServerState, Tensors
from raysim.server.step import Metrics
from raysim.server.sums import Sums


@dataclass(frozen=True)
class Personal:
    """A personalisation with what it trains.

    kind: its functions. client: local training. layout: of the parameters. members: builds clients with the batches of
    a round. correction: none. vectors: those that a client keeps.
    """

    kind: Personalisation
    client: ClientSection
    layout: Layout
    members: Members
    correction: Correction
    vectors: StateVectors

    def train(self, states: LocalStates, examples: Examples, clients: ChunkClients) -> Iterator[Trained]:
        """Train the clients; yields their updates without what they do not send, and the vectors that they keep."""
        kind, broadcast, context = self.kind, states.broadcast, states.context
        weights, after = broadcast.weights, kind.after
        if kind.step is not None and kind.step.own:
            clients = clients.with_each(lambda client: replace(client, own=states.read_own(client.position)))
        # Each client from a start of its own; or all from the model, together where the trainer does so.
        alone = [clients[row : row + 1] for row in range(len(clients))] if kind.start is not None else [clients]
        for group in alone:
            start = weights.params
            if kind.start is not None:
                start = kind.start(self._at(states, examples, group[0]))
            begun = replace(weights, params=start)
            for trained in local_training.train(context.train, begun, group, broadcast.lr, self.layout):
                own: list[Tensor] = []
                # A measurement keeps no state.
                for row, client in enumerate(trained.clients if after is not None and not broadcast.measures else []):
                    assert after is not None
                    beside = None if trained.updates.own is None else trained.updates.own[row]
                    ended = Ended(start, trained.updates.delta[row], beside)
                    own.append(after(self._at(states, examples, client), ended))
                yield replace(self._as_sent(trained), own=tuple(own))

    def scored(self, state: ServerState, positions: Sequence[int]) -> Broadcast:
        """See `PersonalModels.broadcast`."""
        # Of the round that was just finished: an own pass has its batches.
        index = state.round - 1
        places = manifest.places(state.clients, positions) if self.vectors.num else {}
        return Broadcast(index, state.weights, self.client.lr_at(index), beside=x0(state), places=places)

    def of_client(self, context: LocalContext, examples: Examples, broadcast: Broadcast, position: int) -> Tensor:
        """See `PersonalModels.model`."""
        states = LocalStates(self.correction, self.vectors, self.layout, context, broadcast, ())
        (client,) = self.members.of(examples, broadcast, (position,))
        return self.kind.scored(self._at(states, examples, client))

    def _at(self, states: LocalStates, examples: Examples, client: Client) -> PersonalAt:
        broadcast, context = states.broadcast, states.context

        def gradient() -> Tensor:
            assert context.gradients is not None
            of_one = ChunkClients.of([client])
            ((_, gradients),) = local_training.full_gradients(context.gradients, broadcast.weights, of_one)
            return gradients[0]

        own = states.read_own(client.position)
        return PersonalAt(broadcast.weights.params, own, self._own_pass(context, examples, broadcast, client), gradient)

    def _own_pass(
        self, context: LocalContext, examples: Examples, broadcast: Broadcast, client: Client
    ) -> Callable[[Tensor], Tensor]:
        def train(start: Tensor) -> Tensor:
            own, x = self.kind.own, broadcast.weights.params
            assert own is not None
            assert context.own is not None
            worker = client
            if own.section.work_at(broadcast.round) != self.client.work_at(broadcast.round):
                (worker,) = self.members.training_by(own.section).of(examples, broadcast, (client.position,))
            pull = 0.0 if own.section.correction is None else corrections.make(own.section.correction).client.pull
            # pull (y - start) + pull (start - x), the first by the trainer.
            worker = replace(worker, own=None, offset=(start - x) * pull if pull else None)
            lr = broadcast.lr if own.lr is None else own.lr
            return local_training.end_of(context.own, replace(broadcast.weights, params=start), worker, lr)

        return train

    def _as_sent(self, trained: Trained) -> Trained:
        """Return the clients with updates that are 0 where nothing is sent; rejected as the whole update is."""
        if not self.kind.unsent:
            return trained
        with torch.inference_mode():
            delta = trained.updates.delta.clone()
            for piece in self.layout.only(self.kind.unsent).pieces(delta):
                piece.zero_()
            updates = replace(trained.updates, delta=delta, squared_norms=None)
            sent = with_norms(trained.clients, updates, self.layout, trained.finite)
        return replace(sent, finite=trained.finite)


def x0(state: ServerState) -> Tensors:
    """Return the initial model among the vectors beside the model, if clients need it."""
    return {X0: state.correction[X0]} if X0 in state.correction else {}


def with_personal_models(base: Algorithm, personal: Personal, unsent: Layout) -> Algorithm:
    """Return the algorithm with clients' personal models; `unsent`: the layout of the groups that are not sent.

    These groups of the model stay as they are, whatever the server's optimizer does.
    """
    *before_training, training = base.phases

    def init(weights: Weights, sampler: State) -> ServerState:
        state = base.init(weights, sampler)
        begins_at_x0 = personal.kind.begins_at_x0
        return replace(state, correction={**state.correction, X0: weights.params}) if begins_at_x0 else state

    def with_x0(broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]) -> Broadcast:
        return replace(broadcast, beside={**broadcast.beside, **x0(state)})

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        after, metrics = base.step(state, sums, aggregate)
        if not unsent.names or after.weights is state.weights:
            return after, metrics
        params = after.weights.params.clone()
        for piece, first in zip(unsent.pieces(params), unsent.pieces(state.weights.params), strict=True):
            piece.copy_(first)
        after = replace(after, weights=replace(after.weights, params=params))
        return after, {**metrics, "params_norm": math.sqrt(squared_norm(params))}

    phases: tuple[Phase, ...] = (*before_training, training.sending(with_x0))
    traffic = base.traffic._replace(unsent=unsent.num_values)
    models = PersonalModels(personal.scored, personal.of_client, personal.vectors.own)
    return base._replace(init=init, phases=phases, step=step, traffic=traffic, personal=models)
