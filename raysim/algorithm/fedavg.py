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

from torch import Tensor

from raysim.algorithm.algorithm import Algorithm, Traffic
from raysim.algorithm.outgoing import Outgoing
from raysim.algorithm.phase import Broadcast, LocalContext, LocalResult, Members, Phase
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

    train: yields the chunk's clients, those that were trained together at a time. stages: change them in turn, from
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
        on_workers: see there.
    """

    def init(weights: Weights, sampler: State) -> ServerState:
        return server.init(weights, sampler)

    def broadcast(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        lr, limits = client.lr_at(state.round), server.limits(state)
        left_out = frozenset(position for earlier in sums for position in earlier.rejected)
        return Broadcast(state.round, state.weights, lr, limits, repeats, len(sums), left_out=left_out)

    def local(context: LocalContext, examples: Examples, sent: Broadcast, chunk: Chunk) -> LocalResult:
        sums, kept = on_workers.empty(sent.weights), list[Tensor]()
        for position in chunk:
            if position in sent.left_out:
                sums.reject(position)
        for outgoing in on_workers.train(context, examples, sent, chunk):
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


def uploaded(outgoing: Outgoing) -> Outgoing:
    """Stage: make the clients' uploads."""
    return outgoing._replace(uploads=uploads(outgoing.trained))


def contributed(outgoing: Outgoing) -> Outgoing:
    """Stage: make contributions of uploads; None of a client whose update is not finite."""
    by, sent, padding = outgoing.training.contribution, outgoing.sent, outgoing.padding
    contributions = [by(one, sent, padding, outgoing.id_of) if one.finite else None for one in outgoing.uploads]
    return outgoing._replace(contributions=contributions)


def included(sums: Accumulator, outgoing: Outgoing) -> None:
    """Add the contributions with their updates, or what is sent in place of these; reject the other clients."""
    for client, contribution in zip(outgoing.trained.clients, outgoing.contributions, strict=True):
        if contribution is None:
            sums.reject(client.position)
    made, squares, divided = (
        outgoing.trained.updates,
        outgoing.trained.squared_norms,
        outgoing.training.divide(outgoing.trained),
    )
    sums.include(outgoing.contributions, made.delta, squares, made.buffers, made.counters, divided, outgoing.compressed)


def noted(sums: Accumulator, outgoing: Outgoing) -> None:
    """Note the facts of all clients in the sums, unless they are noted with the updates that are kept."""
    if outgoing.states.context.keeps_updates or outgoing.sent.measures:
        return
    for client, contribution in zip(outgoing.trained.clients, outgoing.contributions, strict=True):
        if contribution is not None:
            sums.note(client.position, contribution, None)


def kept_vectors(sums: Accumulator, outgoing: Outgoing) -> list[Tensor]:
    """Return what each client sends, clipped, once per draw, and note the facts of it."""
    vectors = []
    for row, (upload, contribution) in enumerate(zip(outgoing.uploads, outgoing.contributions, strict=True)):
        if contribution is None:
            continue
        if outgoing.compressed is not None:
            vector, squares = outgoing.compressed.vectors[row], outgoing.compressed.squared_norms[row]
        else:
            scale = contribution.judged.scale
            vector, squares = upload.delta * scale, outgoing.trained.squared_norms[row] * scale**2
        vectors += [vector] * contribution.count
        sums.note(upload.client.position, contribution, squares)
    return vectors
