"""Reads and writes the client states of one chunk: control variates, error feedback, models of the clients' own.

A client's state is a matrix (S, P), a row for each vector that it keeps (client/state_vectors.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.local_context import LocalContext
from raysim.client import local_training
from raysim.client.chunk_clients import ChunkClients
from raysim.client.corrections.correction import ClientEnd, ClientStart, Correction
from raysim.client.local_training import Trained, with_norms, working_on
from raysim.client.state_vectors import StateVectors
from raysim.client.trainer import Client
from raysim.cohort.chunks import Chunk
from raysim.cohort.sampler import State
from raysim.config.form import check_form, kept
from raysim.config.unwritten import check_unwritten, named, versions
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.server import manifest
from raysim.server.state import ServerState
from raysim.server.sums import Sums

At = TypeVar("At", ClientStart, ClientEnd)

X0 = "x_0"
"""Name of the initial model among the vectors beside the model, where a personalisation needs it."""


def with_states(base: Algorithm, num: int) -> Algorithm:
    """Return the algorithm whose clients keep `num` vectors: the server's state says where they lie."""
    *before_training, training = base.phases

    def init(weights: Weights, sampler: State) -> ServerState:
        return replace(base.init(weights, sampler), clients=manifest.empty())

    def placed(broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]) -> Broadcast:
        return replace(broadcast, places=manifest.places(state.clients, positions))

    return base._replace(init=init, phases=(*before_training, training.sending(placed)), state_vectors=num)


def _checked(name: str, function: Callable[[At], Tensor], at: At, like: Tensor) -> Tensor:
    """Return a copy of what a function of the client's half returns, which has the form of `like`.

    Raises:
        ValueError: it has another form; or the function wrote to what it was given, of which later clients have a part,
            or later functions of this one.
    """
    read = {**named("received", at.received), "state": at.state, "params": at.params}
    before = versions(*read.values())
    made = function(at)
    check_unwritten(f"ClientHalf.{name}", before, read)
    check_form(f"ClientHalf.{name}", "a vector" if like.dim() == 1 else "the state", made, like)
    return kept(made)


@dataclass(frozen=True)
class LocalStates:
    """Client states of one chunk: read before a client trains, written after its training.

    vectors: the vectors that a client keeps. before: by position, the states of clients in training.
    """

    correction: Correction
    vectors: StateVectors
    layout: Layout
    context: LocalContext
    broadcast: Broadcast
    chunk: Chunk
    before: dict[int, Tensor] = field(default_factory=dict)

    @property
    def prepares(self) -> bool:
        """Whether `prepared` changes a client."""
        half = self.correction.client
        return half.offset is not None or half.begin is not None

    def prepared(self, client: Client) -> Client:
        """Return the client with the correction's offset_i and first y, (P,) each, from its state."""
        half, gradient = self.correction.client, None
        if half.own_gradient:
            assert self.context.gradients is not None
            of_one = ChunkClients.of([client])
            ((_, gradients),) = local_training.full_gradients(self.context.gradients, self.broadcast.weights, of_one)
            gradient = gradients[0]
        state = self.broadcast.weights.params.new_zeros(0)
        if self.vectors.correction:
            state = self._of_correction(client.position)
        begins = ClientStart(self.broadcast.beside, state, gradient, self.layout, self.broadcast.weights.params)
        with working_on(client.position):
            return replace(
                client,
                offset=None if half.offset is None else _checked("offset", half.offset, begins, begins.params),
                begin=None if half.begin is None else _checked("begin", half.begin, begins, begins.params),
            )

    def read_of_transforms(self, position: int) -> tuple[Tensor, ...]:
        """Return the vectors (P,) that the client at this position keeps for transforms."""
        if not self.vectors.transforms:
            return ()
        first = self.vectors.correction
        return tuple(self._before(position)[first : first + len(self.vectors.transforms)])

    def read_rest(self, position: int) -> Tensor | None:
        """Return the vector (P,) that this client's compressor did not send; None if it is not kept."""
        if not self.vectors.rest:
            return None
        return self._before(position)[self.vectors.correction + len(self.vectors.transforms)]

    def read_own(self, position: int) -> Tensor:
        """Return the vector (P,) that the client keeps for itself; x_0 before its first round, or if it keeps none."""
        return self._before(position)[-1] if self.vectors.own else self._initial

    def with_uploads(self, trained: Trained) -> Trained:
        """Return the clients with the updates that the correction sends, measured anew.

        An update that is not finite stays: it is rejected.
        """
        upload = self.correction.client.upload
        if upload is None:
            return trained
        deltas = []
        with torch.inference_mode():
            for row, position in enumerate(trained.clients.positions.tolist()):
                with working_on(position):
                    sent = trained.updates.delta[row]
                    if trained.finite[row]:
                        sent = _checked("upload", upload, self._end(trained, row), sent)
                deltas.append(sent)
            # Stacked, so torch aligns each update, whatever the correction returned.
            updates = replace(trained.updates, delta=torch.stack(deltas), squared_norms=None)
            return with_norms(trained.clients, updates, self.layout, trained.finite)

    def after(self, trained: Trained) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """Return, by client, the correction's next vectors, and their changes, if they are summed.

        Both follow from the clients' updates before transforms and attacks.
        """
        nothing: list[Tensor | None] = [None] * len(trained.clients)
        if not self.vectors.correction:
            return nothing, nothing
        after = [self._after(trained, row) for row in range(len(trained.clients))]
        if not self.correction.exchange.sums_changes:
            return [*after], nothing
        before = [self._of_correction(position) for position in trained.clients.positions.tolist()]
        return [*after], [new - old for new, old in zip(after, before, strict=True)]

    def write(
        self,
        trained: Trained,
        of_correction: Sequence[Tensor | None],
        of_transforms: Sequence[Sequence[Tensor]],
        rests: Sequence[Tensor | None],
    ) -> None:
        """Write the states of trained clients.

        Args:
            trained: the clients, and their own vectors.
            of_correction: by client, the correction's vectors, if it keeps any.
            of_transforms: by client, the vectors (P,) that it keeps for transforms.
            rests: by client, what its compressor did not send, if that is kept.
        """
        if not self.vectors.num:
            return
        for row, position in enumerate(trained.clients.positions.tolist()):
            first, rest = of_correction[row], rests[row]
            state = [*([] if first is None else [first.reshape(-1)]), *of_transforms[row]]
            state += [*([] if rest is None else [rest]), *trained.own[row : row + 1]]
            assert self.context.states is not None
            if not self.broadcast.measures:
                self.context.states.write(self._row[position], state[0] if len(state) == 1 else torch.cat(state))
            self.before.pop(position, None)

    def _after(self, trained: Trained, row: int) -> Tensor:
        after = self.correction.client.after
        assert after is not None
        with working_on(int(trained.clients.positions[row])):
            ended = self._end(trained, row)
            return _checked("after", after, ended, ended.state)

    def _end(self, trained: Trained, row: int) -> ClientEnd:
        position, updates = int(trained.clients.positions[row]), trained.updates
        before = self._of_correction(position) if self.vectors.correction else updates.delta.new_zeros(0)
        place = self.broadcast.places.get(position)
        gap = 1 if place is None else self.broadcast.round - place.round
        gradient = None if updates.gradients is None else updates.gradients[row]
        delta, tau, lr = updates.delta[row], int(trained.clients.batches.steps[row]), self.broadcast.lr
        params = self.broadcast.weights.params
        samples = None if updates.samples is None else updates.samples[row]
        return ClientEnd(self.broadcast.beside, before, delta, tau, lr, gap, gradient, self.layout, params, samples)

    @cached_property
    def _row(self) -> dict[int, int]:
        return {position: row for row, position in enumerate(self.chunk)}

    def _of_correction(self, position: int) -> Tensor:
        own = self._before(position)[: self.vectors.correction]
        return own[0] if len(own) == 1 else own

    def _before(self, position: int) -> Tensor:
        """Return the state (S, P) that the client's last round wrote; before its first round, what it begins with."""
        if position not in self.before:
            stored = None if self.context.states is None else self.context.states.read(position)
            params = self.broadcast.weights.params
            shape = self.vectors.num, len(params)
            if stored is not None:
                self.before[position] = stored.to(params.device).view(shape)
            else:
                self.before[position] = first = params.new_zeros(shape)
                if (init := self.correction.client.init) is not None:
                    with working_on(position):
                        own = self._of_correction(position)
                        begins = init(params)
                        check_form("ClientHalf.init", "the state", begins, own)
                        own.copy_(begins)
                if self.vectors.own:
                    first[-1] = self._initial
        return self.before[position]

    @property
    def _initial(self) -> Tensor:
        """x_0, or x where its unsent groups are all that is used: the server's stay those of x_0."""
        return self.broadcast.beside.get(X0, self.broadcast.weights.params)
