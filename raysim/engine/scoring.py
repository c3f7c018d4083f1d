"""A round's evaluations: which clients of which splits, sent out as jobs, and collected as metrics and rows."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from raysim import evaluate
from raysim.broadcast import Broadcast
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.plan import Plan, evaluated_splits
from raysim.models.model import Weights
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


def submit(executor: Executor, state: ServerState, average: Weights | None, units: Units) -> dict[str, int]:
    """Send the state's model to be scored, and the average beside it where there is one; a ticket for each column."""
    tickets = {}
    for prefix, weights in (("eval", state.weights), ("eval_average", average)):
        if weights is not None:
            sent = Broadcast(state.round - 1, weights, lr=0.0)
            for name, work in units.items():
                tickets[f"{prefix}/{name}"] = executor.submit(Job("evaluate", sent, work, [1.0] * len(work)))
    return tickets


def collect(
    plan: Plan, executor: Executor, index: int, tickets: Mapping[str, int]
) -> tuple[dict[str, float], pa.Table | None, tuple[Outcome, ...]]:
    """Wait for the scores, by "eval/<split>" and its kin: metrics, rows by client (None without tickets), and costs."""
    metrics: dict[str, float] = {}
    tables, outcomes = [], []
    for name, ticket in tickets.items():
        outcome = executor.result(ticket)
        scores = evaluate.per_client(outcome.value)
        metrics |= evaluate.summarise(scores, name, plan.experiment.evaluation.percentiles)
        # Rows are of the model that is broadcast.
        prefix, _, split = name.partition("/")
        if prefix == "eval":
            tables.append(_rows(plan, index, split, scores))
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
