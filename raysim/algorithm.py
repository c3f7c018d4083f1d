"""A federated algorithm: client and server put together, as a record of pure functions.

    broadcast = algorithm.broadcast(state)          what the cohort receives
    sums      = algorithm.local(form, ..., chunk)   a chunk's local training, added up
    state     = algorithm.step(state, sums)         the server's step

`sums` of different chunks add (server/sums.py), in the order of a fixed tree (server/fold.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from raysim.client import chunk as local_training
from raysim.client.form import Form
from raysim.client.section import ClientSection
from raysim.cohort.chunks import Chunk
from raysim.cohort.sampler import State
from raysim.data.dataset import FederatedDataset
from raysim.models.model import Model, Weights
from raysim.server import step as server_step
from raysim.server.diagnostics import label_counts
from raysim.server.limits import UNLIMITED, Limits
from raysim.server.section import ServerSection
from raysim.server.state import ServerState
from raysim.server.step import Metrics
from raysim.server.sums import Accumulator, Sums


@dataclass(frozen=True)
class Broadcast:
    """What a cohort receives.

    The round's index, the model, the client learning rate of this round, the levels of clipping and zeroing, and how
    often clients were drawn that were drawn more than once, by position.
    """

    round: int
    weights: Weights
    lr: float
    limits: Limits = UNLIMITED
    repeats: Mapping[int, int] = field(default_factory=dict)


class Algorithm(NamedTuple):
    """Pure functions; see the module's head. `step` also returns the round's metrics."""

    init: Callable[[Weights, State], ServerState]
    broadcast: Callable[[ServerState, Mapping[int, int]], Broadcast]
    local: Callable[[Form, FederatedDataset, Broadcast, Chunk], Sums]
    step: Callable[[ServerState, Sums], tuple[ServerState, Metrics]]


def federated(
    client: ClientSection,
    server: ServerSection,
    model: Model,
    seed: int,
    cohort_size: Callable[[int], float],
    label_population: Tensor | None = None,
) -> Algorithm:
    """Generalised federated averaging (Reddi et al. 2021, alg. 1): local training, weighted mean, optimizer.

    Args:
        client, server: their sections of the experiment.
        model: layouts.
        seed: addresses what clients draw.
        cohort_size: the configured size of the cohort after t finished rounds.
        label_population: label counts of all training clients, where the cohort's are compared with them.
    """
    by_examples = server.weighting == "examples"
    server_side = server_step.make(server, model.params, cohort_size, label_population)
    num_labels = 0 if label_population is None else len(label_population)

    def broadcast(state: ServerState, repeats: Mapping[int, int]) -> Broadcast:
        return Broadcast(state.round, state.weights, client.lr_at(state.round), server_side.limits(state), repeats)

    def local(form: Form, dataset: FederatedDataset, sent: Broadcast, chunk: Chunk) -> Sums:
        clients = list(local_training.members(dataset, chunk, client, seed, sent.round, sent.weights.params))
        params, buffers, counters = sent.weights.params, sent.weights.buffers, sent.weights.counters
        sums = Accumulator(
            len(params),
            len(buffers),
            len(counters),
            len(model.params.names),
            params.device,
            params.dtype if server.diagnostics.cosine else None,
            num_labels,
        )
        for trained in local_training.train(form, sent.weights, clients, sent.lr, model.params):
            if not trained.finite:
                sums.reject(trained.position)
                continue
            update = trained.update
            sums.include(
                weight=float(trained.num_examples) if by_examples else 1.0,
                examples=trained.num_examples,
                delta=update.delta,
                buffers=update.buffers,
                counters=update.counters,
                squared_norms=trained.squared_norms,
                seen=update.seen,
                loss=update.loss,
                correct=update.correct,
                judged=sent.limits.judge(update.delta, math.sqrt(trained.squared_norms.sum())),
                labels=label_counts(trained.y, num_labels) if num_labels else None,
                count=sent.repeats.get(trained.position, 1),
            )
        return sums.total()

    return Algorithm(server_side.init, broadcast, local, server_side.step)
