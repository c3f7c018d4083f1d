"""A round's evaluations: which clients of which splits, sent out as jobs, and collected as metrics and rows."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from raysim import evaluate
from raysim.algorithm import Broadcast
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.plan import Plan, evaluated_splits
from raysim.records import CLIENT_SCHEMA
from raysim.server.state import ServerState

Units = Mapping[str, tuple[evaluate.Unit, ...]]
"""Work by split."""


def plan_units(plan: Plan) -> Units:
    """What every evaluation of the run scores: the same clients each time. Splits without examples are left out."""
    section = plan.experiment.evaluation
    units = {}
    for name in evaluated_splits(plan):
        split = plan.dataset.split(name)
        chosen = evaluate.sample_clients(split, section.clients, plan.experiment.seed)
        if work := evaluate.plan(name, split, chosen):
            units[name] = work
    return units


def submit(executor: Executor, state: ServerState, units: Units) -> dict[str, int]:
    """Send the state's model to be scored; returns a ticket for each split."""
    sent = Broadcast(state.round - 1, state.weights, lr=0.0)
    return {name: executor.submit(Job("evaluate", sent, work, [1.0] * len(work))) for name, work in units.items()}


def collect(
    plan: Plan, executor: Executor, index: int, tickets: Mapping[str, int]
) -> tuple[dict[str, float], pa.Table | None, tuple[Outcome, ...]]:
    """Wait for the splits' scores: metrics, one row per client (None without tickets), and what it cost."""
    metrics: dict[str, float] = {}
    tables, outcomes = [], []
    for name, ticket in tickets.items():
        outcome = executor.result(ticket)
        scores = evaluate.per_client(outcome.value)
        metrics |= evaluate.summarise(scores, name, plan.experiment.evaluation.percentiles)
        tables.append(_rows(plan, index, name, scores))
        outcomes.append(outcome)
    return metrics, pa.concat_tables(tables) if tables else None, tuple(outcomes)


def _rows(plan: Plan, index: int, name: str, scores: evaluate.ClientScores) -> pa.Table:
    split = plan.dataset.split(name)
    count = len(scores.positions)
    return pa.table(
        {
            "round": [index] * count,
            "split": [name] * count,
            "client": [split.id_of(position) for position in scores.positions.tolist()],
            "examples": scores.examples,
            "loss": scores.loss / scores.examples,
            "accuracy": scores.accuracies(),
        },
        schema=CLIENT_SCHEMA,
    )
