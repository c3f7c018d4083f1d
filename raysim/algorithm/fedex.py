"""Adds FedEx to an algorithm: each client draws a configuration, and the server's step moves their shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.local_context import LocalContext, OwnError
from raysim.algorithm.outgoing import Outgoing
from raysim.client.local_training import Trained
from raysim.cohort.sampler import State
from raysim.config.own_figures import joined
from raysim.models.model import Weights
from raysim.server import fedex
from raysim.server.accumulator import Accumulator
from raysim.server.state import ServerState
from raysim.server.step import Metrics
from raysim.server.sums import Sums


def with_drawn_configs(base: Algorithm, num: int, seed: int) -> Algorithm:
    """Return the algorithm whose clients draw one of `num` configurations; `seed` addresses the draws."""

    def init(weights: Weights, sampler: State) -> ServerState:
        return replace(base.init(weights, sampler), fedex=fedex.init(num))

    def drawn(broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]) -> Broadcast:
        configs = fedex.draw_configs(state.fedex, seed, state.round, positions).tolist()
        return replace(broadcast, configs=dict(zip(positions, configs, strict=True)))

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        after, metrics = base.step(state, sums, aggregate)
        shares, figures = fedex.step(state.fedex, state.round, sums[-1].scored)
        return replace(after, fedex=shares), joined(metrics, figures)

    return base._replace(init=init, phases=tuple(phase.sending(drawn) for phase in base.phases), step=step)


def add_config_errors(sums: Accumulator, outgoing: Outgoing) -> None:
    """Add the errors of the clients' trained models, if they are asked for."""
    for row, position in enumerate(outgoing.sent.clients.positions.tolist()):
        if (error := own_error(outgoing.states.context, outgoing.broadcast, outgoing.trained, row)) is not None:
            sums.score(outgoing.training.number, *error, outgoing.broadcast.repeats.get(position, 1))


def own_error(context: LocalContext, broadcast: Broadcast, trained: Trained, row: int) -> OwnError | None:
    """Return the error of one of the clients' trained models; None if it is not asked for, or has no examples."""
    if context.own_error is None or broadcast.measures:
        return None
    updates, x = trained.updates, broadcast.weights.params
    weights = Weights(x + updates.delta[row], updates.buffers[row], updates.counters[row])
    return context.own_error(weights, int(trained.clients.positions[row]), bool(trained.finite[row]))
