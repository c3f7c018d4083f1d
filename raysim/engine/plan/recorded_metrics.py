"""Names what a run will record, and refuses a stop or a best model by a metric that is not among it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from raysim.algorithm.algorithm import Algorithm
from raysim.config.messages import nearest
from raysim.data.fingerprint import SPLITS
from raysim.engine.plan import own_models
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.errors import DataError, ExperimentError, within
from raysim.evaluation.scores import ClientScores, summarise
from raysim.experiment.stop import EVALUATIONS
from raysim.server.accumulator import Sizes, empty
from raysim.server.state import ServerState

ALWAYS = frozenset({"loss", "clients", "rejected", "examples", "examples_so_far", "examples_held", "server_lr"})
"""Figures that the rounds of every run have."""


def check(plan: Plan) -> None:
    """Refuse `[stop]` and `checkpoint.best` if they wait for something that never comes.

    Raises:
        ExperimentError: the run does not record the metric, or so few times that a mean is never known; or it simulates
            no time.
    """
    e = plan.experiment
    watched = {} if e.stop is None else dict(e.stop.metrics)
    if e.checkpoint.best is not None:
        watched["checkpoint.best"] = e.checkpoint.best.metric
    for key, column in watched.items():
        if column not in ALWAYS and column not in (known := list(_columns(plan, column))):
            if (why := _not_evaluated(plan, column)) is not None:
                raise ExperimentError(f"{key} must be a metric that the run records, but got {column!r}: {why}.")
            only = "evaluations" if column.startswith(EVALUATIONS) else "rounds"
            raise ExperimentError(
                f"{key} must be a metric that the run records, but got {column!r}{nearest(column, known)}: its {only} "
                f"record {', '.join(known) or 'none'}."
            )
    if e.stop is None:
        return
    if (target := e.stop.target) is not None and target.last > (records := _times(plan, target.metric)):
        raise ExperimentError(
            f"stop.target.last must be at most {records:,}, because in {e.rounds:,} rounds {target.metric} is recorded "
            f"that often, but got {target.last:,}."
        )
    if e.stop.budget is not None and e.stop.budget.simulated_s is not None and e.systems is None:
        raise ExperimentError(
            "stop.budget.simulated_s needs simulated devices: add the section [systems], or take another budget."
        )


def _not_evaluated(plan: Plan, column: str) -> str | None:
    """Return why a split of the data is not evaluated that the metric is of; None if that is not what is wrong."""
    kind, _, rest = column.partition("/")
    split = rest.partition("/")[0]
    if kind != "eval" or split not in SPLITS or split in evaluated_splits(plan):
        return None
    evaluates = f"evaluation.split = {split!r} evaluates it"
    try:
        plan.dataset.split(split)
    except DataError as error:
        return f"there is {within(error)}, and {evaluates}"
    return f"the split {split!r} is not evaluated: {evaluates}"


def _times(plan: Plan, column: str) -> int:
    """Return how often a run to its last round records the metric at most."""
    e = plan.experiment
    return -(-e.rounds // e.evaluation.every) if column.startswith(EVALUATIONS) else e.rounds


def _columns(plan: Plan, wanted: str) -> Iterator[str]:
    """Yield the recorded columns of the wanted one's kind: those of evaluations, or those of every round."""
    if wanted.startswith(EVALUATIONS):
        return evaluation_columns(plan, plan.algorithm(), plan.initial_state())
    return _trained(plan)


def evaluation_columns(plan: Plan, algorithm: Algorithm, state: ServerState) -> Iterator[str]:
    """Yield the columns that the rows of evaluated rounds have; `state`: any of the run."""
    section, one = plan.experiment.evaluation, np.ones(1)
    hits = one if plan.task.correct is not None else np.full(1, np.nan)
    by_place = plan.task.weights is not None
    some = ClientScores(np.zeros(1, np.int64), np.ones(1, np.int64), one, hits, one, one, by_place=by_place)
    names = [*(name.removeprefix("/") for name in summarise(some, "", section.percentiles)), *plan.metrics()]
    splits = [name for name in evaluated_splits(plan) if len(plan.dataset.split(name))]
    places = [f"eval/{split}" for split in splits]
    if algorithm.average(state) is not None:
        places += [f"eval_average/{split}" for split in splits]
    for which, split in own_models.splits(plan.experiment).items():
        places += [f"{which.metrics}/{split}", f"{which.metrics}/{split}/{which.of_all}"]
    for place in places:
        yield from (f"{place}/{name}" for name in names)


def _trained(plan: Plan) -> Iterator[str]:
    algorithm, nothing = plan.algorithm(), empty(Sizes.of(plan.model))
    # A round without an update has the names of all figures.
    _, metrics = algorithm.step(plan.initial_state(), (nothing,), None)
    yield from metrics
    if plan.experiment.systems is not None:
        yield from ("simulated_time_s", "asked", "dropped", "late", "discarded", "wasted_examples")
    elif plan.experiment.client.mid_round_dropout:
        yield "dropped"
    yield from ("bytes_down", "bytes_up")
