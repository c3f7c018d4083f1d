"""Refuses experiments that would list more clients than a machine holds, before any memory is taken.

Generated data may have any number of clients, because nothing is kept for each. Some keys list every client all the
same, or a large part of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from raysim.client.corrections import choice as corrections
from raysim.cohort.bernoulli import Bernoulli
from raysim.cohort.section import grown_size
from raysim.config.own_part import is_unbound
from raysim.data.dataset import FederatedDataset
from raysim.data.holdout import MOST_LISTED
from raysim.engine.plan import own_models
from raysim.engine.plan.plan import splits_of
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment

MOST_AT_WORK = 10_000_000
"""Clients of a cohort, or of an evaluation."""


def check(experiment: Experiment, dataset: FederatedDataset) -> None:
    """Refuse an experiment that lists too many clients.

    Raises:
        ExperimentError: names the key and the number of clients.
    """
    population = len(dataset.train)
    if population > MOST_LISTED and (keys := list(_listing(experiment))):
        raise ExperimentError(
            f"{' and '.join(keys)} would list every one of {population:,} training clients, and at most "
            f"{MOST_LISTED:,} can be listed: lower data.clients, or leave it out."
        )
    for key, amount in _at_work(experiment, dataset):
        if amount > MOST_AT_WORK:
            raise ExperimentError(
                f"{key} would be {amount:,} clients at a time, and at most {MOST_AT_WORK:,} can be: lower it."
            )


def _listing(e: Experiment) -> Iterator[str]:
    """Yield the keys that list every training client."""
    if e.cohort.sampler.name in ("md", "adafl"):
        yield f"cohort.sampler.name = {e.cohort.sampler.name!r}"
    if e.adversary is not None and isinstance(e.adversary.clients, float):
        yield "adversary.clients"
    if e.server.diagnostics.labels:
        yield "server.diagnostics.labels"
    if e.server.diagnostics.probe is not None:
        yield "server.diagnostics.probe"
    for which in own_models.splits(e):
        yield which.key
    if e.fedex is not None:
        yield "fedex.split"
    if e.pooled:
        yield "pooled = true"
    chosen = e.client.correction
    if chosen is not None and not is_unbound(chosen) and corrections.make(chosen).requires.equal_steps:
        yield f"client.correction.name = {chosen.name!r}"


def _at_work(e: Experiment, dataset: FederatedDataset) -> Iterator[tuple[str, int]]:
    """Yield numbers of clients that train or are scored at a time, with the keys that set them."""
    population = len(dataset.train)
    if isinstance(e.cohort.sampler, Bernoulli):
        yield "cohort.sampler.probability", int(e.cohort.sampler.probability * population)
    elif e.cohort.size is not None:
        # The size never falls.
        largest = grown_size(e.cohort.growth, e.cohort.size, population, e.rounds - 1)
        yield "cohort.size", largest
        if e.systems is not None:
            yield "cohort.size times systems.over_selection", e.systems.asked(largest, population)
    wanted = e.evaluation.clients
    for name in splits_of(e, dataset):
        if name in dataset.splits:
            clients = len(dataset.splits[name])
            yield f"evaluation.clients of the split {name!r}", clients if wanted == "all" else min(wanted, clients)
