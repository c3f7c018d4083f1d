"""Evaluates a round: submits the clients of the evaluated splits as jobs, and collects metrics and rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.broadcast import Broadcast
from raysim.config.user_call import trace
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.plan import own_models
from raysim.engine.plan.own_models import FINE_TUNED, OF_METRICS, PERSONAL, OwnModels, splits
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.errors import ClientError
from raysim.evaluation import personalised
from raysim.evaluation import scores as evaluate
from raysim.evaluation.metric import Metric, Metrics, PerExample, value
from raysim.evaluation.personalised import BeforeAndAfter
from raysim.evaluation.scores import ClientScores
from raysim.models.model import Weights
from raysim.run_folder.client_table import client_schema
from raysim.server.state import ServerState

log = logging.getLogger("raysim")

NAMED = 5
"""Clients that a warning names."""


class Units(NamedTuple):
    """Work by split: of evaluations, of those before and after fine-tuning, and of those of personal models."""

    evaluate: Mapping[str, tuple[evaluate.Unit, ...]]
    fine_tune: Mapping[str, tuple[personalised.Unit, ...]]
    personal: Mapping[str, tuple[personalised.Unit, ...]]


def plan_units(plan: Plan) -> Units:
    """Plan the units of the run's evaluations: the same examples each time. Splits without examples are left out."""
    section, seed = plan.experiment.evaluation, plan.experiment.seed
    units = {}
    for name in evaluated_splits(plan):
        split = plan.dataset.split(name)
        chosen = evaluate.sample_clients(split, section.clients, seed)
        if work := evaluate.plan(name, evaluate.sample_examples(split, chosen, section.examples, seed)):
            units[name] = work
    own = {which: {name: own_models.units(plan, which, name)} for which, name in splits(plan.experiment).items()}
    return Units(units, own.get(FINE_TUNED, {}), own.get(PERSONAL, {}))


def submit(
    plan: Plan, algorithm: Algorithm, executor: Executor, state: ServerState, average: Weights | None, units: Units
) -> dict[str, int]:
    """Submit the evaluations of the state's model, and of its average; returns a ticket by name."""
    tickets = {}
    model = algorithm.of_all(state)
    for prefix, weights in (("eval", model), ("eval_average", average)):
        if weights is not None:
            broadcast = Broadcast(state.round - 1, weights, lr=0.0)
            for name, work in units.evaluate.items():
                tickets[f"{prefix}/{name}"] = executor.submit(Job("evaluate", broadcast, work, [1.0] * len(work)))
    tuning, index = plan.experiment.evaluation.fine_tuning, state.round - 1
    for name, clients in units.fine_tune.items():
        assert tuning is not None
        lr = plan.experiment.client.lr_at(index) if tuning.lr is None else tuning.lr
        broadcast = Broadcast(index, model, lr)
        tickets[f"{FINE_TUNED.metrics}/{name}"] = executor.submit(
            Job("fine_tune", broadcast, clients, [1.0] * len(clients))
        )
    for name, clients in units.personal.items():
        models = algorithm.personal
        assert models is not None
        broadcast = models.broadcast(state, [client[0] for _, unit in clients for client in unit])
        tickets[f"{PERSONAL.metrics}/{name}"] = executor.submit(
            Job("personal", broadcast, clients, [1.0] * len(clients))
        )
    return tickets


def to_optimum(plan: Plan, weights: Weights) -> dict[str, float]:
    """Return how far the model is from the best one; nothing where the data do not know that one for such a model."""
    if plan.optimum is None:
        return {}
    best, (x,) = plan.optimum(), plan.model.params.pieces(weights.params)
    at = x.double().cpu().numpy()
    return {"distance_to_optimum": best.distance(at), "excess_loss": best.excess(at)}


def collect(
    plan: Plan, algorithm: Algorithm, executor: Executor, index: int, tickets: Mapping[str, int]
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
            which = OF_METRICS[prefix]
            kept = which is PERSONAL and algorithm.personal is not None and algorithm.personal.from_state
            tables.append(_own_rows(plan, own, index, split, outcome.value, which, kept))
            for ending, part in _parts(outcome.value, which, kept).items():
                metrics |= evaluate.summarise(part, f"{name}{ending}", percentiles)
                metrics |= _pooled(own, part, f"{name}{ending}", index)
            continue
        assert isinstance(outcome.value, ClientScores)
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
        failed = f"The metric {name!r} of {whose} failed in round {index}: {error!r}"
        raise ClientError(f"{failed}\n{trace(error)}") from None


def _parts(found: BeforeAndAfter, which: OwnModels, kept: bool) -> dict[str, ClientScores]:
    """Return what metrics are of, by the end of their names: own models, the model of all, and, where clients keep
    (`kept`) vectors of their own, the own models of clients that took part and of those that did not."""
    parts = {f"/{which.of_all}": found.before, "": found.after}
    if kept:
        parts |= {"/seen": evaluate.rows(found.after, found.seen), "/new": evaluate.rows(found.after, ~found.seen)}
    return {ending: part for ending, part in parts.items() if len(part.positions)}


def _own_rows(
    plan: Plan, own: Metrics, index: int, name: str, found: BeforeAndAfter, which: OwnModels, kept: bool
) -> pa.Table:
    first, second = (found.after, found.before) if which.own_first else (found.before, found.after)
    table, train = _rows(plan, own, index, name, first), plan.dataset.train
    clients = table["client"].to_pylist()
    positions = [train.position_of(client) for client in clients]
    columns: dict[str, Any] = {
        "split": [f"{which.rows}/{name}"] * len(clients),
        **{f"{which.other}{figure}": values for figure, values in _figures(own, second, clients, index).items()},
        "training_examples": train.sizes(np.array(positions)),
        "label_similarity": [plan.label_similarity.of(position) for position in positions],
        # Where nothing is kept, the models do not say who took part.
        "seen": found.seen if kept else None,
    }
    for column, values in columns.items():
        if values is not None:
            place, field = table.schema.get_field_index(column), table.schema.field(column)
            table = table.set_column(place, field, pa.array(values, field.type))
    return table


def _figures(own: Metrics, scores: ClientScores, clients: Sequence[str], index: int) -> dict[str, Any]:
    """Return what is scored, by row."""
    losses = scores.losses()
    figures = {"loss": losses, "perplexity": evaluate.perplexity(losses)} if scores.by_place else {"loss": losses}
    return {**figures, "accuracy": scores.accuracies(), **_by_client(own, scores, clients, index)}


def _rows(plan: Plan, own: Metrics, index: int, name: str, scores: ClientScores) -> pa.Table:
    split = plan.dataset.split(name)
    clients = [split.id_of(position) for position in scores.positions.tolist()]
    nothing = [None] * len(clients)
    figures, weights = _figures(own, scores, clients, index), _weights(plan, scores)
    columns = {
        "round": [index] * len(clients),
        "split": [name] * len(clients),
        "client": clients,
        "examples": scores.examples,
        **figures,
        **weights,
    }
    schema = client_schema(figures, [which.other for which in splits(plan.experiment)], weights)
    return pa.table({column: columns.get(column, nothing) for column in schema.names}, schema=schema)


def _weights(plan: Plan, scores: ClientScores) -> dict[str, npt.NDArray[np.float64]]:
    """Return what each client weighs in the split's loss and accuracy, where that is not its number of examples."""
    found = {"loss_weight": scores.weight} if scores.by_place else {}
    return found if plan.task.counted is None else {**found, "accuracy_weight": scores.counted}
