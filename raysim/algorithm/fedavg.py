"""Defines federated averaging: a round as functions, to which everything else is added (federated.py).

    broadcast = training.broadcast(state, ...)         the model and the clients' learning rate
    sums     += training.local(..., broadcast, chunk)  each chunk: trained -> uploads -> contributions -> sums
    state     = step(state, sums)                      the server's step

Sums of chunks add (server/sums.py) in the order of a fixed tree (cohort/tree.py), wherever they were computed.

Source: Reddi et al. (2021), algorithm 1; docs/algorithms.md, section 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.algorithm.algorithm import Algorithm, Traffic
from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.local_context import LocalContext, LocalResult
from raysim.algorithm.members import Members
from raysim.algorithm.outgoing import Outgoing
from raysim.algorithm.phase import Phase
from raysim.algorithm.uploads import uploads
from raysim.client.section import ClientSection
from raysim.cohort.chunks import Chunk
from raysim.cohort.sampler import State
from raysim.data.on_device import Examples
from raysim.models.model import Weights
from raysim.server.accumulator import Accumulator
from raysim.server.state import ServerState
from raysim.server.step import Metrics, Server
from raysim.server.sums import Sums

Adding = Callable[[Accumulator, Outgoing], None]
"""Adds outgoing clients, or something of them, to the sums of a chunk."""


class OnWorkers(NamedTuple):
    """How a worker computes the sums of a chunk.

    train: yields the chunk's clients, those that were measured together at a time. stages: change them in turn, from
    training to contributions. adding: add them to the sums. empty: sums to which nothing was added. vectors: updates
    (P,) for rules that need all of them, once per draw; it notes their facts in the sums.
    """

    train: Callable[[LocalContext, Examples, Broadcast, Chunk], Iterator[Outgoing]]
    stages: Sequence[Callable[[Outgoing], Outgoing]]
    adding: Sequence[Adding]
    empty: Callable[[Weights], Accumulator]
    vectors: Callable[[Accumulator, Outgoing], list[Tensor]]


def fedavg(client: ClientSection, server: Server, members: Members, on_workers: OnWorkers) -> Algorithm:
    """Return the algorithm of one phase, in which clients train: the weighted mean of updates, and the server's step.

    Args:
        client: local training; here, its learning rate.
        server: pure functions of the server's state.
        members: builds the clients of a chunk.
        on_workers: computes the sums of a chunk.
    """

    def init(weights: Weights, sampler: State) -> ServerState:
        return server.init(weights, sampler)

    def broadcast(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        lr, limits = client.lr_at(state.round), server.limits(state)
        left_out = frozenset(position for earlier in sums for position in earlier.rejected)
        return Broadcast(state.round, state.weights, lr, limits, repeats, len(sums), left_out=left_out)

    def local(context: LocalContext, examples: Examples, broadcast: Broadcast, chunk: Chunk) -> LocalResult:
        sums, kept = on_workers.empty(broadcast.weights), list[Tensor]()
        sums.reject(position for position in chunk if position in broadcast.left_out)
        for outgoing in on_workers.train(context, examples, broadcast, chunk):
            for stage in on_workers.stages:
                outgoing = stage(outgoing)
            for add in on_workers.adding:
                add(sums, outgoing)
            if context.keeps_updates:
                kept += on_workers.vectors(sums, outgoing)
        return LocalResult(sums.total(), tuple(kept))

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        *earlier, last = sums
        return server.step(state, last, aggregate, None, sum(before.seen for before in earlier))

    return Algorithm(
        init,
        (Phase(broadcast, local),),
        step,
        average=lambda state: None,
        state_vectors=0,
        traffic=Traffic(),
        members=members,
        received=lambda state: state.weights.params,
    )


def make_uploads(outgoing: Outgoing) -> Outgoing:
    """Stage: make the clients' uploads."""
    return outgoing._replace(uploads=uploads(outgoing.sent))


def make_contributions(outgoing: Outgoing) -> Outgoing:
    """Stage: make contributions of uploads; one whose update is not finite is not included."""
    assert outgoing.uploads is not None
    contributions = outgoing.training.contributions(
        outgoing.uploads, outgoing.broadcast, outgoing.padding, outgoing.id_of
    )
    return outgoing._replace(contributions=contributions)


def add_updates(sums: Accumulator, outgoing: Outgoing) -> None:
    """Add the contributions with their updates, or what is sent in place of these; reject the other clients."""
    contributions, sent = outgoing.contributions, outgoing.sent
    assert contributions is not None
    sums.reject(sent.clients.positions[~contributions.included].tolist())
    updates, squares, divided = sent.updates, sent.squared_norms, outgoing.training.divide(sent)
    sums.include(contributions, updates.delta, squares, updates.buffers, updates.counters, divided, outgoing.compressed)


def record_facts(sums: Accumulator, outgoing: Outgoing) -> None:
    """Note the facts of all clients in the sums, unless they are noted with the updates that are kept."""
    assert outgoing.contributions is not None
    if not outgoing.states.context.keeps_updates and not outgoing.broadcast.measures:
        sums.note(outgoing.contributions, outgoing.sent.clients.positions, None)


def keep_vectors(sums: Accumulator, outgoing: Outgoing) -> list[Tensor]:
    """Return what each client sends, clipped, once per draw, and note the facts of it."""
    contributions, sent, compressed = outgoing.contributions, outgoing.sent, outgoing.compressed
    assert contributions is not None
    if compressed is not None:
        vectors, squares = list(compressed.vectors), compressed.squared_norms
    else:
        scales = contributions.judged_scale
        vectors = [delta * scale for delta, scale in zip(sent.updates.delta, scales.tolist(), strict=True)]
        squares = sent.squared_norms * torch.from_numpy(scales**2).to(sent.squared_norms.device).unsqueeze(1)
    sums.note(contributions, sent.clients.positions, squares)
    return [vectors[row] for row in contributions.rows.tolist() for _ in range(contributions.count[row])]
