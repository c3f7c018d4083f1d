"""Trains a round: chooses its clients, cuts chunks, and runs its phases one after the other.

Where the sampler chooses by losses, the first phase is of all candidates, and the others are of the clients chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raysim.algorithm.algorithm import Algorithm
from raysim.cohort.chunks import Chunk
from raysim.cohort.cohorts import Cohorts
from raysim.cohort.sampler import Positions
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds import full_participation
from raysim.engine.rounds.selection import Selection, select
from raysim.run_folder.timeline import Stopwatch
from raysim.server.accumulator import Sizes, empty
from raysim.server.aggregators.updates import Bounds, shards
from raysim.server.state import ServerState
from raysim.server.sums import Sums


@dataclass(frozen=True)
class Training:
    """A round of which a phase is submitted.

    ticket: of the phase; None if no client of the cohort trains. selected: the clients of the cohort that train.
    chunks, costs, bounds: of the jobs. probe: the ticket of the probe, in rounds with one. times_lost: number of times
    that the round was trained before, and updates were lost with a node.
    """

    ticket: int | None
    cohort: Positions
    selected: Selection
    chunks: tuple[Chunk, ...]
    costs: Sequence[float]
    bounds: tuple[Bounds, ...]
    watch: Stopwatch
    probe: int | None = None
    times_lost: int = 0


def begin(
    plan: Plan,
    algorithm: Algorithm,
    cohorts: Cohorts,
    executor: Executor,
    state: ServerState,
    keep: bool,
    probe: int | None = None,
    mate: Training | None = None,
) -> Training:
    """Choose the cohort, plan its chunks, and submit them; with `keep`, workers keep the updates.

    `probe`: the ticket of the round's probe, if it was submitted already. `mate`: the same round of a run with the same
    cohort and chunks, if there is one.
    """
    watch = Stopwatch()
    if mate is not None:
        training = replace(mate, watch=watch, ticket=None)
    else:
        with watch.phase("sample"):
            cohort = cohorts.sample(state.sampler, state.round)
            if cohorts.rule.choose is None:
                selected = select(plan, algorithm, cohort, state.round, theta=state.fedex)
            else:
                selected = Selection(cohort, {}, len(cohort), {})
        training = _planned(plan, cohort, selected, state, keep, watch)
    if not training.chunks:
        return training
    with watch.phase("submit"):
        training = replace(training, ticket=_submit(algorithm, executor, state, training, ()))
        every = plan.experiment.server.diagnostics.probe
        if probe is None and every is not None and state.round % every == 0:
            probe = full_participation.submit(plan, algorithm, executor, state)
        return replace(training, probe=probe)


def _planned(
    plan: Plan, cohort: Positions, selected: Selection, state: ServerState, keep: bool, watch: Stopwatch
) -> Training:
    """Return the round with the chunks of the selected clients, if there are any."""
    positions, repeats = selected.positions, selected.repeats
    if not len(positions):
        return Training(None, cohort, selected, (), (), (), watch)
    with watch.phase("plan"):
        chunks, costs = plan.chunks(positions, state.round, state.fedex)
        bounds = shards(plan.model.params.size, sum(repeats.get(p, 1) for p in positions.tolist())) if keep else ()
    return Training(None, cohort, selected, chunks, costs, bounds, watch)


def _chosen(
    plan: Plan, algorithm: Algorithm, cohorts: Cohorts, state: ServerState, training: Training, losses: Sums
) -> Training:
    """Return the round of the clients that the sampler chooses, from that of all candidates and the sums of its phase.

    Candidates without a finite loss are in the cohort, and leave it as clients do whose updates are not finite.
    """
    loss_of = {fact.position: fact.loss for fact in losses.facts}
    candidates = training.cohort
    has_loss = np.array([position in loss_of for position in candidates.tolist()], dtype=bool)
    of_candidates = np.array([loss_of[position] for position in candidates[has_loss].tolist()], dtype=np.float64)
    chosen = cohorts.choose(candidates[has_loss], of_candidates, state.round)
    silent = candidates[~has_loss]
    cohort = np.concatenate([chosen, silent])
    # They take no place of those that train, and the server does not wait for them.
    selected = select(plan, algorithm, chosen, state.round, len(candidates), state.fedex)
    selected = selected._replace(positions=np.concatenate([selected.positions, silent]), silent=len(silent))
    planned = _planned(plan, cohort, selected, state, plan.keeps_updates, training.watch)
    return replace(planned, probe=training.probe, times_lost=training.times_lost)


def _submit(
    algorithm: Algorithm, executor: Executor, state: ServerState, training: Training, sums: tuple[Sums, ...]
) -> int:
    """Submit the phase that follows those with sums; workers keep only the updates of the last phase."""
    phase = algorithm.phases[len(sums)]
    selected = training.selected
    broadcast = phase.broadcast(state, selected.repeats, selected.positions.tolist(), sums)
    bounds = training.bounds if len(sums) + 1 == len(algorithm.phases) else ()
    return executor.submit(Job("train", broadcast, training.chunks, training.costs, bounds))


def wait(
    plan: Plan, algorithm: Algorithm, cohorts: Cohorts, executor: Executor, state: ServerState, training: Training
) -> tuple[Training, tuple[Outcome, ...]]:
    """Wait for every phase; returns the round with the clients that trained, and one outcome for each phase."""
    with training.watch.phase("train"):
        training, outcomes = before_training(plan, algorithm, cohorts, executor, state, training)
        last = _without_clients(plan) if training.ticket is None else executor.result(training.ticket)
    return training, (*outcomes, last)


def before_training(
    plan: Plan, algorithm: Algorithm, cohorts: Cohorts, executor: Executor, state: ServerState, training: Training
) -> tuple[Training, tuple[Outcome, ...]]:
    """Wait for every phase but the last, and send each one the sums of those before it.

    Returns the round with its last phase submitted, and the outcomes of the others.
    """
    outcomes: tuple[Outcome, ...] = ()
    while training.ticket is not None and len(outcomes) + 1 < len(algorithm.phases):
        outcomes = (*outcomes, executor.result(training.ticket))
        sums = tuple(outcome.sums for outcome in outcomes)
        if len(outcomes) == 1 and cohorts.rule.choose is not None:
            training = _chosen(plan, algorithm, cohorts, state, training, sums[0])
        if training.chunks:
            training = replace(training, ticket=_submit(algorithm, executor, state, training, sums))
    return training, outcomes


def _without_clients(plan: Plan) -> Outcome:
    """Return the outcome of a round without clients."""
    return Outcome(empty(Sizes.of(plan.model)), spans=(), workers=1)
