"""The loop: sample, plan, train, fold, step, evaluate, record. Runs in the driver; knows no executor by name."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raysim import evaluate
from raysim.algorithm import Broadcast
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.plan import Plan, evaluated_splits
from raysim.models.model import Weights
from raysim.records import CLIENT_SCHEMA, RunFolder
from raysim.server.state import ServerState
from raysim.server.sums import Sums

log = logging.getLogger("raysim")


@dataclass(frozen=True)
class Finished:
    """A finished round, as it leaves the loop.

    metrics: by their fixed names. cohort: client ids in sampling order. rejected: ids of clients whose update was not
    finite. clients: one row per evaluated client, None where nothing was evaluated. weights: after the server step.
    """

    index: int
    metrics: Mapping[str, float]
    cohort: tuple[str, ...]
    rejected: tuple[str, ...]
    clients: pa.Table | None
    weights: Weights

    @property
    def row(self) -> dict[str, Any]:
        """The round as a row of the records."""
        return {"round": self.index, **self.metrics, "rejected_clients": list(self.rejected)}


def rounds(
    plan: Plan,
    executor: Executor,
    state: ServerState,
    folder: RunFolder | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Finished]:
    """Run from `state` to the experiment's last round, yielding each round when it is finished and recorded.

    However the loop ends (an error, an interrupt, a reader that leaves), the last finished round is checkpointed.

    Args:
        plan: the run.
        executor: carries out the work.
        state: where to go on from; `plan.initial_state()` for a new run.
        folder: where rows and checkpoints go; None writes nothing.
        stop: asked between rounds; True ends the loop.
    """
    experiment = plan.experiment
    algorithm = plan.algorithm()
    sampler = plan.sampler()
    evaluations = _evaluations(plan)
    try:
        while state.round < experiment.rounds and not stop():
            start_s = time.perf_counter()
            index = state.round
            cohort = sampler.sample(state.sampler, index)
            chunks, costs = plan.chunks(cohort)
            outcome = executor.result(executor.submit(Job("train", algorithm.broadcast(state), chunks, costs)))
            sums: Sums = outcome.value
            state, metrics = algorithm.step(state, sums)
            if sums.rejected:
                _say_rejected(plan, index, sums)
            clients = None
            if state.round % experiment.evaluation.every == 0 or state.round == experiment.rounds:
                scores, clients = evaluate_now(plan, executor, state, evaluations)
                metrics |= scores
            metrics |= costs_of(outcome, plan, len(cohort), time.perf_counter() - start_s)
            split = plan.dataset.train
            finished = Finished(
                index=index,
                metrics=metrics,
                cohort=tuple(split.id_of(position) for position in cohort.tolist()),
                rejected=tuple(split.id_of(position) for position in sums.rejected),
                clients=clients,
                weights=state.weights,
            )
            if folder is not None:
                folder.add(finished.row, clients)
                if state.round % experiment.checkpoint.every == 0 or state.round == experiment.rounds:
                    folder.checkpoint(state)
            yield finished
    finally:
        if folder is not None and folder.checkpointed < state.round:
            folder.checkpoint(state)


def _evaluations(plan: Plan) -> dict[str, tuple[evaluate.Unit, ...]]:
    """What to evaluate, split by split: the same clients in every round."""
    section = plan.experiment.evaluation
    units = {}
    for name in evaluated_splits(plan):
        split = plan.dataset.split(name)
        units[name] = evaluate.plan(name, split, evaluate.sample_clients(split, section.clients, plan.experiment.seed))
    return units


def evaluate_now(
    plan: Plan, executor: Executor, state: ServerState, units: Mapping[str, tuple[evaluate.Unit, ...]]
) -> tuple[dict[str, float], pa.Table | None]:
    """Score the model on every split; returns metrics and a row per client."""
    sent = Broadcast(state.round - 1, state.weights, lr=0.0)
    tickets = {
        name: executor.submit(Job("evaluate", sent, work, [1.0] * len(work))) for name, work in units.items() if work
    }
    metrics: dict[str, float] = {}
    tables = []
    for name, ticket in tickets.items():
        scores = evaluate.per_client(executor.result(ticket).value)
        metrics |= evaluate.summarise(scores, name, plan.experiment.evaluation.percentiles)
        tables.append(_client_rows(plan, state.round - 1, name, scores))
    return metrics, pa.concat_tables(tables) if tables else None


def _client_rows(plan: Plan, index: int, name: str, scores: evaluate.ClientScores) -> pa.Table:
    split = plan.dataset.split(name)
    count = len(scores.positions)
    return pa.table(
        {
            "round": [index] * count,
            "split": [name] * count,
            "client": [split.id_of(position) for position in scores.positions.tolist()],
            "examples": scores.examples,
            "loss": scores.loss / scores.examples,
            "accuracy": scores.correct / scores.examples,
        },
        schema=CLIENT_SCHEMA,
    )


def costs_of(outcome: Outcome, plan: Plan, cohort_size: int, wall_time_s: float) -> dict[str, float]:
    """What the round cost: simulated clients' transfers, and the engine's own time and traffic."""
    model, item_bytes = plan.model, plan.initial.params.element_size()
    model_bytes = (model.params.num_values + model.buffers.num_values) * item_bytes + model.counters.num_values * 8
    return {
        "bytes_down": cohort_size * model_bytes,
        "bytes_up": cohort_size * model_bytes,
        "wall_time_s": wall_time_s,
        "idle_fraction": max(0.0, 1 - outcome.busy_s / (outcome.workers * outcome.span_s)),
        "retries": outcome.retries,
        "ray_bytes_down": outcome.bytes_down,
        "ray_bytes_up": outcome.bytes_up,
    }


def _say_rejected(plan: Plan, index: int, sums: Sums) -> None:
    names = [plan.dataset.train.id_of(position) for position in sums.rejected]
    log.warning("round %d: rejected the updates of %d client(s), not finite: %s", index, len(names), ", ".join(names))
    if sums.clients == 0:
        log.warning("round %d: every update was rejected, so the model is left as it is", index)
