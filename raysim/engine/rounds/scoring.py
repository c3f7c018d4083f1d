"""Evaluates a round: submits the clients of the evaluated splits as jobs, and collects metrics and rows."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raysim.algorithm.phase import Broadcast
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.errors import ClientError
from raysim.evaluation import personalised
from raysim.evaluation import scores as evaluate
from raysim.evaluation.metric import Metric, Metrics, PerExample, value
from raysim.evaluation.personalised import BeforeAndAfter
from raysim.evaluation.scores import ClientScores
from raysim.models.model import Weights
from raysim.run_folder.records import client_schema
from raysim.server.state import ServerState

log = logging.getLogger("raysim")

NAMED = 5
"""Clients that a warning names."""


class Units(NamedTuple):
    """Work by split: of evaluations, and of those before and after fine-tuning."""

    evaluate: Mapping[str, tuple[evaluate.Unit, ...]]
    personalise: Mapping[str, tuple[personalised.Unit, ...]]


def plan_units(plan: Plan) -> Units:
    """Plan the units of the run's evaluations: the same examples each time. Splits without examples are left out."""
    section, seed = plan.experiment.evaluation, plan.experiment.seed
    units = {}
    for name in evaluated_splits(plan):
        split = plan.dataset.split(name)
        chosen = evaluate.sample_clients(split, section.clients, seed)
        if work := evaluate.plan(name, evaluate.sample_examples(split, chosen, section.examples, seed)):
            units[name] = work
        else:
            log.warning("the split %r has no examples, so it is not evaluated", name)
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
    """Submit the evaluations of the state's model, and of its average; returns a ticket by name."""
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


def to_optimum(plan: Plan, weights: Weights) -> dict[str, float]:
    """Return how far the model is from the best one; nothing where the data do not know that one for such a model."""
    if plan.optimum is None:
        return {}
    best, (x,) = plan.optimum(), plan.model.params.pieces(weights.params)
    at = x.double().cpu().numpy()
    return {"distance_to_optimum": best.distance(at), "excess_loss": best.excess(at)}


def collect(
    plan: Plan, executor: Executor, index: int, tickets: Mapping[str, int]
) -> tuple[dict[str, float], pa.Table | None, tuple[Outcome, ...]]:
    """Wait for the scores; returns metrics as "eval/<split>/...", rows by client (None without tickets), and costs."""
    metrics: dict[str, float] = {}
    tables, outcomes, own = [], [], plan.metrics()
    percentiles = plan.experiment.evaluation.percentiles
    for name, ticket in tickets.items():
        outcome = executor.result(ticket)
        outcomes.append(outcome)
        prefix, _, split = name.partition("/")
        if isinstance(outcome.value, BeforeAndAfter):
            before, after = outcome.value.before, outcome.value.after
            tables.append(_rows(plan, own, index, split, before, after))
            metrics |= evaluate.summarise(before, f"{name}/before", percentiles)
            metrics |= _pooled(own, before, f"{name}/before", index)
            metrics |= evaluate.summarise(after, name, percentiles) | _pooled(own, after, name, index)
            continue
        scores = evaluate.per_client(outcome.value)
        _warn_of_losses(plan, scores, name, index)
        # Rows show the model that is broadcast.
        if prefix == "eval":
            tables.append(_rows(plan, own, index, split, scores))
        metrics |= evaluate.summarise(scores, name, percentiles) | _pooled(own, scores, name, index)
    return metrics, pa.concat_tables(tables) if tables else None, tuple(outcomes)


def _warn_of_losses(plan: Plan, scores: ClientScores, name: str, index: int) -> None:
    """Name the clients whose loss is not finite: that of the split is not either, and the others' are hidden in it."""
    bad = scores.positions[~np.isfinite(scores.loss)].tolist()
    if bad:
        split = plan.dataset.split(name.partition("/")[2])
        ids = ", ".join(repr(split.id_of(position)) for position in bad[:NAMED])
        others = f" and {len(bad) - NAMED} others" if len(bad) > NAMED else ""
        log.warning(
            "round %d: %s/loss is not finite, because that of %d of its %d clients is not: %s%s",
            *(index, name, len(bad), len(scores.positions), ids, others),
        )


def _pooled(own: Metrics, scores: ClientScores, name: str, index: int) -> dict[str, float]:
    """Return user-defined metrics over all clients: each is the value of the clients' total sums."""
    examples = int(scores.examples.sum())
    return {
        f"{name}/{column}": _figure(column, metric, sums.sum(axis=0), examples, name, index)
        for (column, metric), sums in zip(own.items(), scores.own, strict=True)
    }


def _by_client(own: Metrics, scores: ClientScores, clients: Sequence[str], index: int) -> dict[str, list[float]]:
    """Return user-defined metrics, one per row."""
    sizes = scores.examples.tolist()
    return {
        column: [
            _figure(column, metric, row, size, f"client {client!r}", index)
            for row, size, client in zip(sums, sizes, clients, strict=True)
        ]
        for (column, metric), sums in zip(own.items(), scores.own, strict=True)
    }


def _figure(
    name: str, metric: Metric | PerExample, sums: npt.NDArray[np.float64], examples: int, whose: str, index: int
) -> float:
    try:
        return value(metric, sums, examples)
    except Exception as error:
        trace = "".join(traceback.format_exception(error))
        raise ClientError(f"The metric {name!r} of {whose} failed in round {index}: {error!r}\n{trace}") from error


def _rows(
    plan: Plan, own: Metrics, index: int, name: str, scores: ClientScores, tuned: ClientScores | None = None
) -> pa.Table:
    split = plan.dataset.split(name)
    clients = [split.id_of(position) for position in scores.positions.tolist()]
    nothing = [None] * len(clients)
    columns = {
        "round": [index] * len(clients),
        "split": [name if tuned is None else f"fine_tuning/{name}"] * len(clients),
        "client": clients,
        "examples": scores.examples,
        "loss": scores.loss / scores.examples,
        "accuracy": scores.accuracies(),
        "tuned_loss": nothing if tuned is None else tuned.loss / tuned.examples,
        "tuned_accuracy": nothing if tuned is None else tuned.accuracies(),
        **_by_client(own, scores, clients, index),
    }
    schema = client_schema(own, tuned=plan.experiment.evaluation.fine_tuning is not None)
    if tuned is not None:
        columns |= {f"tuned_{name}": found for name, found in _by_client(own, tuned, clients, index).items()}
    return pa.table({column: columns.get(column, nothing) for column in schema.names}, schema=schema)
