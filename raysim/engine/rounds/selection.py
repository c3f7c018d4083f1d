"""Selects the clients of a cohort that train, by dropout and by the simulated devices; counts the bytes they transfer.

The selection is a pure function of experiment, round and cohort. It is known before training, so raysim does not train
clients whose reports do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from raysim.algorithm.algorithm import Algorithm, Traffic
from raysim.client.personalisation import choice as personalisations
from raysim.client.work import stays
from raysim.cohort.sampler import Positions
from raysim.engine.plan.plan import Plan
from raysim.server.state import Tensors
from raysim.server.step import Metrics
from raysim.systems.reports import close
from raysim.systems.times import Load


class Selection(NamedTuple):
    """positions: the clients that train, in sampling order. repeats: number of draws of clients drawn more than once.

    num_asked: number of clients that received the model. metrics: of the simulated devices. abandoned: too few reports
    arrived, so none counts. silent: clients at the end of `positions` whose loss was not finite: they are only named.
    """

    positions: Positions
    repeats: Mapping[int, int]
    num_asked: int
    metrics: Metrics
    abandoned: bool = False
    silent: int = 0

    @property
    def senders(self) -> int:
        """Number of clients that send an update."""
        return len(self.positions) - self.silent


def select(
    plan: Plan,
    algorithm: Algorithm,
    cohort: Positions,
    round_index: int,
    candidates: int | None = None,
    theta: Tensors | None = None,
) -> Selection:
    """Select the clients that train; a client that was drawn several times trains once.

    `candidates`: number of clients from which the cohort was chosen, if there are more; all received the model.
    `theta`: see `Plan.work`.
    """
    selected = _select(plan, algorithm, cohort, round_index, theta)
    if candidates is None:
        return selected
    return selected._replace(num_asked=candidates, metrics={**selected.metrics, "asked": candidates})


def _select(plan: Plan, algorithm: Algorithm, cohort: Positions, round_index: int, theta: Tensors | None) -> Selection:
    members, first, counts = np.unique(cohort, return_index=True, return_counts=True)
    repeats = {int(p): int(c) for p, c in zip(members, counts, strict=True) if c > 1}
    asked = cohort[np.sort(first)]
    e = plan.experiment
    stay = stays(e.client.mid_round_dropout, e.seed, round_index, asked)
    if e.systems is None:
        metrics: Metrics = {"dropped": int((~stay).sum())} if e.client.mid_round_dropout else {}
        return Selection(asked[stay], repeats, len(asked), metrics)
    load = _load(plan, algorithm, asked, round_index, theta)
    times_s = np.where(stay, e.systems.times(e.seed, round_index, asked, load), np.inf)
    reports = len(asked) if e.systems.over_selection == 1 else _size(plan, round_index)
    closed = close(times_s, reports, e.systems.deadline_s, e.systems.min_reports)
    metrics = {
        "simulated_time_s": closed.time_s + e.systems.server_s,
        "asked": len(asked),
        "dropped": closed.dropped,
        "late": closed.late,
        "discarded": closed.discarded,
        "wasted_examples": int(load.examples[~closed.counts].sum()),
    }
    return Selection(asked[closed.counts], repeats, len(asked), metrics, closed.abandoned)


def _load(plan: Plan, algorithm: Algorithm, asked: Positions, round_index: int, theta: Tensors | None) -> Load:
    """Return the load of these clients: a phase of full gradients is one more pass over a client's examples, and so is
    the own pass of a personalisation."""
    sizes = plan.dataset.train.sizes(asked)
    examples = plan.work(asked, round_index, theta).examples
    examples = examples + sum(phase.of != "training" for phase in algorithm.phases) * sizes
    kind = personalisations.make(plan.experiment.client, plan.model.params)
    if kind is not None and kind.own is not None:
        own = kind.own.section.work_at(round_index)
        examples = examples + own.examples(sizes, own.steps(sizes, plan.experiment.seed, round_index, asked))
    one = transfers(plan, algorithm.traffic, 1)
    return Load(examples, one["bytes_down"], one["bytes_up"])


def _size(plan: Plan, round_index: int) -> int:
    return int(plan.experiment.cohort.size_at(len(plan.dataset.train))(round_index))


def transfers(plan: Plan, traffic: Traffic, cohort_size: int, senders: int | None = None) -> dict[str, float]:
    """Return the bytes that simulated clients would transfer; `senders` of them, by default all, stay to the end.

    `traffic` is the algorithm's.
    """
    model, item_bytes = plan.model, plan.initial.params.element_size()
    vector_bytes = (model.params.num_values - traffic.unsent) * item_bytes
    beside = model.buffers.num_values * item_bytes + model.counters.num_values * 8
    model_bytes = vector_bytes if traffic.model_bytes is None else traffic.model_bytes
    update_bytes = vector_bytes if traffic.update_bytes is None else traffic.update_bytes
    senders = cohort_size if senders is None else senders
    return {
        "bytes_down": cohort_size * (model_bytes + beside + traffic.down * vector_bytes),
        "bytes_up": senders * (update_bytes + beside + traffic.up * vector_bytes),
    }
