"""A federated algorithm: client and server put together, as a record of pure functions.

    broadcast = algorithm.broadcast(state)          what the cohort receives
    sums      = algorithm.local(form, ..., chunk)   a chunk's local training, added up
    state     = algorithm.step(state, sums)         the server's step

`sums` of different chunks add (server/sums.py), in the order of a fixed tree (fold.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from raysim.client import chunk as local_training
from raysim.client.form import Form
from raysim.client.section import ClientSection
from raysim.cohort.chunks import Chunk
from raysim.cohort.sampler import State
from raysim.data.dataset import FederatedDataset
from raysim.models.model import Model, Weights
from raysim.server import sgd
from raysim.server.section import ServerSection
from raysim.server.state import ServerState
from raysim.server.sums import Accumulator, Sums

Metrics = dict[str, float]


@dataclass(frozen=True)
class Broadcast:
    """What a cohort receives: the round's index, the model, and the client learning rate of this round."""

    round: int
    weights: Weights
    lr: float


class Algorithm(NamedTuple):
    """Pure functions; see the module's head. `step` also returns the round's metrics."""

    init: Callable[[Weights, State], ServerState]
    broadcast: Callable[[ServerState], Broadcast]
    local: Callable[[Form, FederatedDataset, Broadcast, Chunk], Sums]
    step: Callable[[ServerState, Sums], tuple[ServerState, Metrics]]


def federated(client: ClientSection, server: ServerSection, model: Model, seed: int) -> Algorithm:
    """Generalised federated averaging (Reddi et al. 2021, alg. 1): local training, weighted mean, optimizer."""
    optimizer = sgd.make(server.optimizer)
    by_examples = server.weighting == "examples"

    def init(weights: Weights, sampler: State) -> ServerState:
        return ServerState(0, weights, optimizer.init(weights.params), sampler)

    def broadcast(state: ServerState) -> Broadcast:
        return Broadcast(state.round, state.weights, client.lr_at(state.round))

    def local(form: Form, dataset: FederatedDataset, sent: Broadcast, chunk: Chunk) -> Sums:
        clients = local_training.members(dataset, chunk, client, seed, sent.round, sent.weights.params)
        params, buffers, counters = sent.weights.params, sent.weights.buffers, sent.weights.counters
        sums = Accumulator(len(params), len(buffers), len(counters), len(model.params.names), params.device)
        for trained in local_training.train(form, sent.weights, clients, sent.lr, model.params):
            made, loss, correct = trained.updates, trained.updates.loss.tolist(), trained.updates.correct.tolist()
            for row, member in enumerate(trained.clients):
                if not trained.finite[row]:
                    sums.reject(member.position)
                    continue
                sums.include(
                    weight=float(member.num_examples) if by_examples else 1.0,
                    examples=member.num_examples,
                    delta=made.delta[row],
                    buffers=made.buffers[row],
                    counters=made.counters[row],
                    squared_norms=trained.squared_norms[row],
                    seen=made.seen[row],
                    loss=loss[row],
                    correct=correct[row],
                )
        return sums.total()

    def step(state: ServerState, sums: Sums) -> tuple[ServerState, Metrics]:
        metrics: Metrics = {
            "clients": sums.clients,
            "rejected": len(sums.rejected),
            "examples": sums.examples,
            "server_lr": server.optimizer.lr,
        }
        if sums.clients == 0:
            # Every update was rejected: the model is left as it is, and the round says so by clients = 0.
            return ServerState(state.round + 1, state.weights, state.optimizer, state.sampler), metrics
        weights = state.weights
        g = sums.delta.div(-sums.weight).to(weights.params.dtype)
        params, optimizer_state = optimizer.step(weights.params, g, state.optimizer)
        buffers = sums.buffers.div(sums.weight).to(weights.buffers.dtype)
        metrics |= {
            "loss": sums.loss / sums.seen,
            "pseudo_gradient_norm": float(torch.linalg.vector_norm(g, dtype=torch.float64)),
            "mean_update_norm": sums.norm / sums.clients,
        }
        if not math.isnan(sums.correct):
            metrics["accuracy"] = sums.correct / sums.seen
        stepped = Weights(params, buffers, sums.counters)
        return ServerState(state.round + 1, stepped, optimizer_state, state.sampler), metrics

    return Algorithm(init, broadcast, local, step)
