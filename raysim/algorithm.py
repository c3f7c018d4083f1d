"""A federated algorithm: client and server put together, as a record of pure functions.

    broadcast = algorithm.broadcast(state)          what the cohort receives
    sums      = algorithm.local(form, ..., chunk)   a chunk's local training, added up
    state     = algorithm.step(state, sums)         the server's step

`sums` of different chunks add (server/sums.py), in the order of a fixed tree (fold.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.client import chunk as local_training
from raysim.client.adversary import Adversary, LabelFlip, attack, flip
from raysim.client.batches import num_local_steps
from raysim.client.form import Form
from raysim.client.section import ClientSection
from raysim.cohort.chunks import Chunk
from raysim.cohort.sampler import State
from raysim.data.dataset import FederatedDataset
from raysim.models.model import Model, Weights
from raysim.server import fednova
from raysim.server import step as server_step
from raysim.server.diagnostics import label_counts
from raysim.server.limits import UNLIMITED, Limits
from raysim.server.norms import group_norms
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
    local: Callable[[Form, FederatedDataset, Broadcast, Chunk, list[Tensor] | None], Sums]
    step: Callable[[ServerState, Sums, Tensor | None], tuple[ServerState, Metrics]]


def federated(
    client: ClientSection,
    server: ServerSection,
    model: Model,
    seed: int,
    cohort_size: Callable[[int], float],
    label_population: Tensor | None = None,
    adversary: Adversary | None = None,
    adversaries: frozenset[int] = frozenset(),
) -> Algorithm:
    """Generalised federated averaging (Reddi et al. 2021, alg. 1): local training, weighted mean, optimizer.

    Args:
        client, server: their sections of the experiment.
        model: layouts.
        seed: addresses what clients draw.
        cohort_size: the configured size of the cohort after t finished rounds.
        label_population: label counts of all training clients, where the cohort's are compared with them.
        adversary, adversaries: what which positions do.
    """
    nova = server.aggregator if isinstance(server.aggregator, fednova.FedNova) else None
    server_side = server_step.make(server, model.params, cohort_size, label_population)
    num_labels = 0 if label_population is None else len(label_population)

    def broadcast(state: ServerState, repeats: Mapping[int, int]) -> Broadcast:
        return Broadcast(state.round, state.weights, client.lr_at(state.round), server_side.limits(state), repeats)

    def local(
        form: Form, dataset: FederatedDataset, sent: Broadcast, chunk: Chunk, kept: list[Tensor] | None = None
    ) -> Sums:
        clients = local_training.members(dataset, chunk, client, seed, sent.round, sent.weights.params)
        if isinstance(adversary, LabelFlip) and dataset.num_classes is not None:
            flipped = dataset.num_classes
            clients = [replace(c, y=flip(c.y, flipped)) if c.position in adversaries else c for c in clients]
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
            made, loss, correct = trained.updates, trained.updates.loss.tolist(), trained.updates.correct.tolist()
            for row, member in enumerate(trained.clients):
                position = member.position
                delta, squared_norms, finite = made.delta[row], trained.squared_norms[row], trained.finite[row]
                if adversary is not None and finite and position in adversaries:
                    delta = attack(adversary, delta, model.params, seed, sent.round, position)
                    squared_norms = torch.tensor(group_norms(model.params, delta), dtype=torch.float64).square()
                    finite = bool(squared_norms.sum().isfinite())
                if not finite:
                    sums.reject(position)
                    continue
                weight = float(member.num_examples) if server.weighs_examples else 1.0
                count = sent.repeats.get(position, 1)
                squared_norm = float(squared_norms.sum())
                judged = sent.limits.judge(delta, math.sqrt(squared_norm))
                normaliser = 1.0
                if nova is not None:
                    tau = num_local_steps(client, member.num_examples)
                    a = fednova.normaliser(tau, client.optimizer.momentum)
                    judged = judged._replace(scale=judged.scale / a)
                    normaliser = a if nova.tau_eff == "sum_p_a" else tau
                sums.include(
                    weight=weight,
                    examples=member.num_examples,
                    delta=delta,
                    buffers=made.buffers[row],
                    counters=made.counters[row],
                    squared_norms=squared_norms,
                    squared_norm=squared_norm,
                    seen=made.seen[row],
                    loss=loss[row],
                    correct=correct[row],
                    judged=judged,
                    labels=label_counts(member.y, num_labels) if num_labels else None,
                    count=count,
                    normaliser=normaliser,
                )
                if kept is not None:
                    kept += [delta * judged.scale] * count
                    sums.keep(position, weight, squared_norms, judged.scale, count)
        return sums.total()

    return Algorithm(server_side.init, broadcast, local, server_side.step)
