"""A round's evaluations: which clients of which splits, sent out as jobs, and collected as metrics and rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa

from raysim.algorithm.phase import Broadcast
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.evaluation import personalised
from raysim.evaluation import scores as evaluate
from raysim.evaluation.personalised import BeforeAndAfter
from raysim.models.model import Weights
from raysim.run_folder.records import CLIENT_SCHEMA
from raysim.server.state import ServerState


class Units(NamedTuple):
    """Work by split: of evaluations, and of those before and after fine-tuning."""

    evaluate: Mapping[str, tuple[evaluate.Unit, ...]]
    personalise: Mapping[str, tuple[personalised.Unit, ...]]


def plan_units(plan: Plan) -> Units:
    """What every evaluation of the run scores: the same clients each time. Splits without examples are left out."""
    section = plan.experiment.evaluation
    units = {}
    for name in evaluated_splits(plan):
        split = plan.dataset.split(name)
        chosen = evaluate.sample_clients(split, section.clients, plan.experiment.seed)
        if work := evaluate.plan(name, split, chosen):
            units[name] = work
    return Units(units, _personal_units(plan))


def _personal_units(plan: Plan) -> dict[str, tuple[personalised.Unit, ...]]:
    section = plan.experiment.evaluation
    if section.fine_tuning is None:
        return {}
    name = section.fine_tuning.split
    split = plan.dataset.split(name)
    chosen = evaluate.sample_clients(split, section.clients, plan.experiment.seed)
    return {name: personalised.plan(name, split, plan.dataset.train, chosen.tolist())}


def submit(plan: Plan, executor: Executor, state: ServerState, average: Weights | None, units: Units) -> dict[str, int]:
    """Send the state's model to be scored, and what is scored beside it; a ticket for each name in the metrics."""
    tickets = {}
    for prefix, weights in (("eval", state.weights), ("eval_average", average)):
        if weights is not None:
            sent = Broadcast(state.round - 1, weights, lr=0.0)
            for name, work in units.evaluate.items():
                tickets[f"{prefix}/{name}"] = executor.submit(Job("evaluate", sent, work, [1.0] * len(work)))
    tuning, index = plan.experiment.evaluation.fine_tuning, state.round - 1
    for name, clients in units.personalise.items():
        assert tuning is not None
        lr = plan.experiment.client.lr_at(index) if tuning.lr is None else tuning.lr
        sent = Broadcast(index, state.weights, lr)
        tickets[f"eval_tuned/{name}"] = executor.submit(Job("personalise", sent, clients, [1.0] * len(clients)))
    return tickets


def collect(
    plan: Plan, executor: Executor, index: int, tickets: Mapping[str, int]
) -> tuple[dict[str, float], pa.Table | None, tuple[Outcome, ...]]:
    """Wait for the scores, by "eval/<split>" and its kin: metrics, rows by client (None without tickets), and costs."""
    metrics: dict[str, float] = {}
    tables, outcomes = [], []
    for name, ticket in tickets.items():
        outcome = executor.result(ticket)
        outcomes.append(outcome)
        prefix, _, split = name.partition("/")
        percentiles = plan.experiment.evaluation.percentiles
        if isinstance(outcome.value, BeforeAndAfter):
            before, after = outcome.value.before, outcome.value.after
            metrics |= evaluate.summarise(before, f"{name}/before", percentiles)
            metrics |= evaluate.summarise(after, name, percentiles)
            tables.append(_rows(plan, index, split, before, after))
            continue
        scores = evaluate.per_client(outcome.value)
        metrics |= evaluate.summarise(scores, name, percentiles)
        # Rows are of the model that is broadcast.
        if prefix == "eval":
            tables.append(_rows(plan, index, split, scores))
    return metrics, pa.concat_tables(tables) if tables else None, tuple(outcomes)


def _rows(
    plan: Plan, index: int, name: str, scores: evaluate.ClientScores, tuned: evaluate.ClientScores | None = None
) -> pa.Table:
    split = plan.dataset.split(name)
    count = len(scores.positions)
    return pa.table(
        {
            "round": [index] * count,
            "split": [name if tuned is None else f"fine_tuning/{name}"] * count,
            "client": [split.id_of(position) for position in scores.positions.tolist()],
            "examples": scores.examples,
            "loss": scores.loss / scores.examples,
            "accuracy": scores.accuracies(),
            "tuned_loss": [None] * count if tuned is None else tuned.loss / tuned.examples,
            "tuned_accuracy": [None] * count if tuned is None else tuned.accuracies(),
        },
        schema=CLIENT_SCHEMA,
    )
