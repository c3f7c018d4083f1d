"""Trains a round: chooses its clients, cuts chunks, and runs its phases one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raysim.algorithm.federated import Algorithm
from raysim.cohort.chunks import Chunk
from raysim.cohort.cohorts import Cohorts
from raysim.cohort.sampler import Positions
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds import full_participation
from raysim.engine.rounds.selection import Selection, select
from raysim.run_folder.timeline import Stopwatch
from raysim.server.accumulator import empty
from raysim.server.aggregators.updates import Bounds, shards
from raysim.server.state import ServerState
from raysim.server.sums import Sums


@dataclass(frozen=True)
class Training:
    """A round in its first phase; `ticket` is None if no client of the cohort trains.

    selected: the clients of the cohort that train. chunks, costs, bounds: of the jobs.
    probe: the ticket of the probe, in rounds with one. times_lost: number of times that the round was trained before,
    and updates were lost with a node.
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
) -> Training:
    """Choose the cohort, plan its chunks, and submit them; with `keep`, workers keep the updates.

    `probe`: the ticket of the round's probe, if it was submitted already.
    """
    watch = Stopwatch()
    with watch.phase("sample"):
        cohort = cohorts.sample(state.sampler, state.round)
        selected = select(plan, algorithm, cohort, state.round)
    positions, repeats = selected.positions, selected.repeats
    if not len(positions):
        return Training(None, cohort, selected, (), (), (), watch)
    with watch.phase("plan"):
        chunks, costs = plan.chunks(positions, state.round)
        bounds = shards(plan.model.params.size, sum(repeats.get(p, 1) for p in positions.tolist())) if keep else ()
    training = Training(None, cohort, selected, chunks, costs, bounds, watch)
    with watch.phase("submit"):
        training = replace(training, ticket=_submit(algorithm, executor, state, training, ()))
        every = plan.experiment.server.diagnostics.probe
        if probe is None and every is not None and state.round % every == 0:
            probe = full_participation.submit(plan, algorithm, executor, state)
        return replace(training, probe=probe)


def _submit(
    algorithm: Algorithm, executor: Executor, state: ServerState, training: Training, sums: tuple[Sums, ...]
) -> int:
    """Submit the phase that follows those with sums; workers keep only the updates of the last phase."""
    phase = algorithm.phases[len(sums)]
    selected = training.selected
    sent = phase.broadcast(state, selected.repeats, selected.positions.tolist(), sums)
    bounds = training.bounds if len(sums) + 1 == len(algorithm.phases) else ()
    return executor.submit(Job("train", sent, training.chunks, training.costs, bounds))


def wait(
    plan: Plan, algorithm: Algorithm, executor: Executor, state: ServerState, training: Training
) -> tuple[Outcome, ...]:
    """Wait for every phase, and send each one the sums of those before it; returns one outcome for each."""
    with training.watch.phase("train"):
        if training.ticket is None:
            return (_nobody(plan),)
        outcomes = [executor.result(training.ticket)]
        while len(outcomes) < len(algorithm.phases):
            sums = tuple(outcome.value for outcome in outcomes)
            outcomes.append(executor.result(_submit(algorithm, executor, state, training, sums)))
    return tuple(outcomes)


def _nobody(plan: Plan) -> Outcome:
    """Return the outcome of a round without clients."""
    model = plan.model
    nothing = empty(model.params.size, model.buffers.size, model.counters.size, len(model.params.names))
    return Outcome(nothing, spans=(), workers=1)
