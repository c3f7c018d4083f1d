"""Assembles a finished round: its metrics, its cost to the engine, and its row of the records."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pyarrow as pa

from raysim.algorithm.algorithm import Algorithm
from raysim.config.counted import counted
from raysim.config.own_figures import joined
from raysim.engine.job import Executor, Outcome
from raysim.engine.plan import example_remarks
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds import full_participation, scoring
from raysim.engine.rounds.training import Training
from raysim.experiment.row import lost_every_update
from raysim.experiment.stopping import StopReason
from raysim.models.model import Weights
from raysim.run_folder.timeline import PREFIX, Span, Stopwatch
from raysim.server.state import ServerState
from raysim.server.step import Metrics

log = logging.getLogger("raysim")

ENDS = "([stop.divergence] ends such runs)"


@dataclass(frozen=True)
class SteppedRound:
    """A round whose server step is done, and whose evaluations may still be under way."""

    state: ServerState
    metrics: Metrics
    rejected: tuple[int, ...]
    training: Training
    outcomes: tuple[Outcome, ...]
    """Of the phases; the training phase is first."""
    evaluations: Mapping[str, int] | None
    """Their tickets by name; None if none is due."""
    transferred: Mapping[str, float]
    """Bytes that clients transferred."""


@dataclass(frozen=True)
class Finished:
    """A finished round, as it leaves the loop.

    metrics: by their fixed names; None if a figure is not defined. cohort: ids of all clients of the cohort, in
    sampling order. rejected: ids of clients whose update was not finite. clients: one row per evaluated client, None
    if nothing was evaluated. weights: after the server step.
    spans: timeline of driver and workers since the previous round. stopped: why the run ends with this round, if it
    stops before its last one.
    """

    index: int
    metrics: Mapping[str, float | None]
    cohort: tuple[str, ...]
    rejected: tuple[str, ...]
    clients: pa.Table | None
    weights: Weights
    spans: tuple[Span, ...]
    stopped: StopReason | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The round as a row of the records."""
        named: dict[str, list[str] | None] = {"rejected_clients": list(self.rejected)}
        if "catastrophic_failure" in self.metrics:
            named["catastrophic_cohort"] = list(self.cohort) if self.metrics["catastrophic_failure"] else None
        return {"round": self.index, **self.metrics, **named}


def finish(
    plan: Plan,
    algorithm: Algorithm,
    executor: Executor,
    stepped: SteppedRound,
    unscored: Metrics,
    since_s: float,
    writing: Stopwatch,
    advises: bool,
) -> Finished:
    """Wait for the round's evaluations and assemble the round.

    Args:
        plan: the run.
        algorithm: the run's.
        executor: carries out the evaluations and the probe.
        stepped: the round after its step.
        unscored: the figures of evaluations, None: a table has all columns from its first row.
        since_s: end of the previous round, before its writing.
        writing: the time to write the previous round.
        advises: say what to do where no update counted; it takes a look at data and first model.
    """
    index, training, split = stepped.state.round - 1, stepped.training, plan.dataset.train
    watch = training.watch
    with watch.phase("evaluate"):
        scores, clients, of_scores = scoring.collect(plan, algorithm, executor, index, stepped.evaluations or {})
    probed, of_probe = _probed(plan, executor, training)
    rejected = tuple(split.id_of(position) for position in stepped.rejected)
    _warn(plan, stepped, index, rejected, advises)
    outcomes = (*stepped.outcomes, *of_scores, *of_probe)
    others = {
        **unscored,
        **scores,
        **probed,
        **stepped.transferred,
        **_engine_costs(outcomes, training.times_lost, time.perf_counter() - since_s),
        **watch.seconds(),
        f"{PREFIX}write": 0.0,
        **writing.seconds(),
    }
    return Finished(
        index=index,
        metrics=joined(stepped.metrics, others),
        cohort=tuple(split.id_of(position) for position in training.cohort.tolist()),
        rejected=rejected,
        clients=clients,
        weights=stepped.state.weights,
        spans=(*writing.spans, *watch.spans, *(span for outcome in outcomes for span in outcome.spans)),
    )


def _probed(plan: Plan, executor: Executor, training: Training) -> tuple[Metrics, tuple[Outcome, ...]]:
    """Wait for the round's probe, if it has one; return its figures and its cost."""
    if training.probe is None:
        return {}, ()
    with training.watch.phase("probe"):
        outcome = executor.result(training.probe)
    return full_participation.read(plan, outcome.sums), (outcome,)


def _warn(plan: Plan, stepped: SteppedRound, index: int, rejected: Sequence[str], advises: bool) -> None:
    """Log what went wrong in the round: updates that did not count, and a fall of the accuracy."""
    is_private = plan.experiment.server.privacy is not None
    left = "the step has the noise of privacy alone" if is_private else "the model is left as it is"
    lost_all = lost_every_update(stepped.metrics)
    if rejected and not lost_all:
        log.warning(
            "round %d: rejected %s, not finite, of: %s", index, counted(len(rejected), "update"), ", ".join(rejected)
        )
    if stepped.training.selected.abandoned:
        log.warning("round %d: fewer reports than systems.min_reports, so %s", index, left)
    if lost_all:
        advice = f". {_advice(plan, stepped.rejected)} {ENDS}" if advises else ""
        log.warning("round %d: every update was rejected, so %s%s", index, left, advice)
    if stepped.metrics.get("catastrophic_failure"):
        log.warning(
            "round %d: the cohort's training accuracy fell below half of the last round's, to %.3g; column "
            "catastrophic_cohort has its clients",
            index,
            stepped.metrics["accuracy"],
        )


def _advice(plan: Plan, rejected: Sequence[int]) -> str:
    """What to do where every update was rejected: learning rates do not help where the first step was not finite."""
    looked = rejected[: example_remarks.LOOKED_AT]
    if len(example_remarks.not_finite(plan.dataset, looked, plan.initial.params.dtype)) == len(looked):
        return "The examples of these clients have values that are not finite: mend the data"
    if not example_remarks.begins_finite(plan, looked[0]):
        return "The loss of the first model is not finite: mend the model or the loss"
    return "The run diverges: lower the learning rates"


def _engine_costs(outcomes: tuple[Outcome, ...], times_lost: int, wall_s: float) -> dict[str, float]:
    """Return the round's cost to the engine. `wall_s`: from the end of the previous round to the end of this one.
    `times_lost`: number of times that the whole round was trained again."""
    train = outcomes[0]
    busy_s = sum(outcome.busy_s for outcome in outcomes)
    return {
        "workers": train.workers,
        "wall_time_s": wall_s,
        "idle_fraction": min(1.0, max(0.0, 1 - busy_s / (train.workers * wall_s))),
        "retries": times_lost + sum(outcome.retries for outcome in outcomes),
        **_by_node("ray_bytes_down", [outcome.bytes_down for outcome in outcomes]),
        **_by_node("ray_bytes_up", [outcome.bytes_up for outcome in outcomes]),
        f"{PREFIX}put": train.put_s,
        f"{PREFIX}fold": train.fold_s,
    }


def _by_node(name: str, of_outcomes: Sequence[Sequence[int]]) -> dict[str, float]:
    """Return the sum under `name`; if there are several nodes, also their numbers under `name/0` and so on."""
    nodes = [sum(each) for each in zip_longest(*of_outcomes, fillvalue=0)]
    return {name: sum(nodes), **({f"{name}/{i}": count for i, count in enumerate(nodes)} if len(nodes) > 1 else {})}
