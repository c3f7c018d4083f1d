"""A federated algorithm: client and server put together, as a record of pure functions.

    for phase in algorithm.phases:
        broadcast = phase.broadcast(state, ..., sums)    what the cohort receives
        sums     += phase.local(workshop, ..., chunk)    each chunk's part in it, added up
    state = algorithm.step(state, sums)                  the server's step

Most algorithms have the one phase in which clients train; Mime, MimeLite and FedDANE first take full gradients. Sums of
different chunks add (server/sums.py), in the order of a fixed tree (fold.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from raysim import gradient_phase, train_phase
from raysim.broadcast import Broadcast
from raysim.client.adversary import Adversary
from raysim.client.corrections import make as corrections
from raysim.client.corrections.correction import Stepped
from raysim.client.section import ClientSection
from raysim.cohort.sampler import State
from raysim.members import Members
from raysim.models.model import Model, Weights
from raysim.phase import Phase
from raysim.server import manifest
from raysim.server import step as server_step
from raysim.server.own import Maker
from raysim.server.section import ServerSection
from raysim.server.state import ServerState, Tensors
from raysim.server.step import Metrics
from raysim.server.sums import Sums


class Algorithm(NamedTuple):
    """Pure functions; see the module's head.

    `step` takes the sums of every phase, and what stands in the mean's place, if anything does; it also returns the
    round's metrics. `average`: the weights to evaluate beside the state's. `remembers`: whether clients keep a state.
    `traffic`: vectors of the model's size that a client receives and sends beside the model. `members`: who the
    clients of a chunk are.
    """

    init: Callable[[Weights, State], ServerState]
    phases: tuple[Phase, ...]
    step: Callable[[ServerState, Sequence[Sums], Tensor | None], tuple[ServerState, Metrics]]
    average: Callable[[ServerState], Weights | None]
    remembers: bool
    traffic: tuple[int, int]
    members: Members


def federated(
    client: ClientSection,
    server: ServerSection,
    model: Model,
    seed: int,
    cohort_size: Callable[[int], float],
    population: int,
    label_population: Tensor | None = None,
    adversary: Adversary | None = None,
    adversaries: frozenset[int] = frozenset(),
    server_optimizer: Maker | None = None,
) -> Algorithm:
    """Generalised federated averaging (Reddi et al. 2021, alg. 1): corrected local training, weighted mean, optimizer.

    Args:
        client, server: their sections of the experiment.
        model: layouts.
        seed: addresses what clients draw.
        cohort_size: the configured size of the cohort after t finished rounds.
        population: N, the number of training clients.
        label_population: label counts of all training clients, where the cohort's are compared with them.
        adversary, adversaries: what which positions do.
        server_optimizer: makes the server's optimizer, where it is one's own.
    """
    correction = corrections.make(client)
    server_side = server_step.make(server, model.params, cohort_size, label_population, server_optimizer)
    num_labels = 0 if label_population is None else len(label_population)
    members = Members(client, seed, adversary, adversaries)
    remembers = correction.after is not None

    def init(weights: Weights, sampler: State) -> ServerState:
        state = server_side.init(weights, sampler)
        clients = manifest.empty() if remembers else {}
        return replace(state, correction=correction.init(weights.params), clients=clients)

    def plain(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        lr, limits = client.lr_at(state.round), server_side.limits(state)
        return Broadcast(state.round, state.weights, lr, limits, repeats, phase=len(sums))

    def corrected(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        return replace(
            plain(state, repeats, positions, sums),
            beside=correction.sends(state.correction, gradient_phase.mean(sums, state.weights.params)),
            places=manifest.places(state.clients, positions) if remembers else {},
            left_out=frozenset(position for earlier in sums for position in earlier.rejected),
        )

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        gradient = gradient_phase.mean(sums[:-1], state.weights.params)

        def settle(before: ServerState, made: Sums, params: Tensor, g: Tensor) -> tuple[Tensor, Tensors]:
            assert correction.settle is not None
            settled = correction.settle(
                Stepped(
                    state=before.correction,
                    params=params,
                    g=g,
                    clients=made.clients,
                    population=population,
                    lr=client.lr_at(before.round),
                    tau=made.steps / made.clients,
                    changes=made.changes,
                    gradient=gradient,
                )
            )
            return settled.params, settled.state

        return server_side.step(state, sums[-1], aggregate, None if correction.settle is None else settle)

    def average(state: ServerState) -> Weights | None:
        if correction.average is None:
            return None
        return replace(state.weights, params=state.correction[correction.average])

    phases = [
        Phase(
            corrected,
            train_phase.make(client, server, correction, model, seed, members, num_labels, adversary, adversaries),
        )
    ]
    if correction.full_gradients:
        phases.insert(0, Phase(plain, gradient_phase.make(server, model.params, members)))
    nothing = torch.zeros(0)
    down = len(correction.sends(correction.init(nothing), nothing))
    traffic = down, correction.sums_changes + correction.full_gradients
    return Algorithm(init, tuple(phases), step, average, remembers, traffic, members)
