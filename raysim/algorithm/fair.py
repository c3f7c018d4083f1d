"""Adds a fair objective to an algorithm: clients' losses of the model decide how their updates enter the mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from raysim.algorithm import start_losses
from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.broadcast import Broadcast
from raysim.cohort.sampler import State
from raysim.config.own_figures import joined
from raysim.models.model import Weights
from raysim.server.fairness import fairness
from raysim.server.fairness.fairness import Fairness
from raysim.server.state import ServerState
from raysim.server.step import Metrics
from raysim.server.sums import Sums


def with_fair_objective(base: Algorithm, objective: Fairness, population: int) -> Algorithm:
    """Return the algorithm, whose first phase takes losses, with a fair objective; `population`: N."""

    def init(weights: Weights, sampler: State) -> ServerState:
        return replace(base.init(weights, sampler), fairness=objective.init(population))

    def weighed(broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]) -> Broadcast:
        if not sums:
            return broadcast
        trained = set(positions) - broadcast.left_out
        losses = [loss for loss in start_losses.losses_of(sums) if loss.position in trained]
        weights = objective.weigh(state.fairness, losses, broadcast.lr)
        by_position = {loss.position: weight for loss, weight in zip(losses, weights, strict=True)}
        return replace(broadcast, fair_weights=by_position)

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        *earlier, last = sums
        after, metrics = base.step(state, (*earlier, fairness.divide_sums(last)), aggregate)
        weights = {fact.position: fact.weight for fact in last.facts}
        losses = [loss for loss in start_losses.losses_of(earlier) if loss.position in weights]
        figures = fairness.figures(losses, [fairness.FairWeight(weights[loss.position]) for loss in losses])
        learned = objective.learn(state.fairness, losses) if objective.learn and losses else state.fairness
        return replace(after, fairness=learned), joined(metrics, figures)

    return base._replace(init=init, phases=tuple(phase.sending(weighed) for phase in base.phases), step=step)
