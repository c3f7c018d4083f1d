"""Divides the clients of a chunk among configurations of local training, of which each has drawn one (FedEx)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from raysim.algorithm import local_adaptivity
from raysim.algorithm.phase import Broadcast, LocalContext, Members, OwnError
from raysim.algorithm.uploads import Upload, contribution_rule
from raysim.client.corrections import make as corrections
from raysim.client.local_training import Trained
from raysim.client.section import ClientSection
from raysim.cohort.chunks import Chunk
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.server.accumulator import Contribution, Divided
from raysim.server.section import ServerSection


class Configured(NamedTuple):
    """Local training by one configuration, and what depends on it.

    number: j. client: its section. members: builds its clients. contribution, divide: see uploads.py and
    local_adaptivity.py.
    """

    number: int
    client: ClientSection
    members: Members
    contribution: Callable[[Upload, Broadcast, int | None, Callable[[int], str]], Contribution]
    divide: Callable[[Trained], Divided | None]


def configured(
    sections: Sequence[ClientSection], server: ServerSection, members: Members, layout: Layout, num_labels: int
) -> list[Configured]:
    """Return the local training of each section."""
    return [
        Configured(
            j,
            client,
            members.training_by(client),
            contribution_rule(client, server, corrections.make(client.correcting), num_labels),
            local_adaptivity.division(client, server, layout),
        )
        for j, client in enumerate(sections)
    ]


def parts(
    trainings: Sequence[Configured], context: LocalContext, sent: Broadcast, chunk: Chunk
) -> Iterator[tuple[Configured, LocalContext, Broadcast, Chunk]]:
    """Yield each configuration that the chunk's clients train by, with its trainer, learning rate and clients."""
    if context.trainer_of is None:
        yield trainings[0], context, sent, chunk
        return
    for j in sorted({sent.configs[position] for position in chunk}):
        its = trainings[j]
        clients = tuple(position for position in chunk if sent.configs[position] == j)
        lr = its.client.lr_at(sent.round)
        yield its, context._replace(train=context.trainer_of(j)), replace(sent, lr=lr), clients


def own_error(context: LocalContext, sent: Broadcast, trained: Trained, row: int) -> OwnError | None:
    """Return the error of one of the clients' trained models; None if it is not asked for, or has no examples."""
    if context.own_error is None or sent.measures:
        return None
    made, x = trained.updates, sent.weights.params
    weights = Weights(x + made.delta[row], made.buffers[row], made.counters[row])
    return context.own_error(weights, trained.clients[row].position)
