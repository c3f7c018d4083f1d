"""Names the keys that an experiment sets and that change nothing beside its other keys.

Such a key is accepted, because it may stay while others change, as in a sweep; whoever begins a run says it. What is
named here has no effect for sure: not every such key is found. One that only sets the order in which the same clients
are drawn, and so the last digits of sums over them, is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from raysim.client.optimizers.sgd import ClientSgd
from raysim.cohort.adafl import AdaFl
from raysim.cohort.bernoulli import Bernoulli
from raysim.cohort.uniform import UniformSampler
from raysim.config import overrides
from raysim.experiment import idle_within
from raysim.experiment.compatibility import correction_of
from raysim.experiment.experiment import Experiment
from raysim.experiment.leaving import leaving
from raysim.server.aggregators.fednova import FedNova


class Idle(NamedTuple):
    """A key without effect; `text` has its value and the reason."""

    key: str
    text: str


def remarks(experiment: Experiment, population: int) -> Iterator[Idle]:
    """Yield each such key.

    Args:
        experiment: its parts of a script are bound; of others their properties are not known.
        population: number of training clients.
    """
    yield from itertools.starmap(Idle, idle_within.idle_keys(experiment))
    yield from _all_clients(experiment, population)
    yield from _tau_eff(experiment)
    yield from _replaced_by_fedex(experiment)
    yield from _min_reports(experiment)
    yield from _weighting(experiment)
    yield from _short_batches(experiment)


def _tau_eff(experiment: Experiment) -> Iterator[Idle]:
    aggregator = experiment.server.aggregator
    if not isinstance(aggregator, FedNova) or aggregator.tau_eff == "sum_p_a":
        return
    trained = experiment.configurations or (experiment.training,)
    pulled = any(correction_of(section).client.pull for section in trained)
    momentum = any(not isinstance(one.optimizer, ClientSgd) or one.optimizer.momentum for one in trained)
    if not pulled and not momentum:
        yield Idle(
            "server.aggregator.tau_eff",
            f"server.aggregator.tau_eff = {aggregator.tau_eff!r} has no effect: under client.optimizer 'sgd' without "
            f"momentum and without a pull a_i = tau_i, so it is the same as 'sum_p_a'",
        )


def _replaced_by_fedex(experiment: Experiment) -> Iterator[Idle]:
    # A fine-tuned evaluation trains by [client] itself.
    if experiment.fedex is None or experiment.evaluation.fine_tuning is not None:
        return
    given = experiment.client.model_dump(mode="json", by_alias=True, exclude_unset=True)
    changed = [set(overrides.tables_and_leaves(_nested(change))) for change in experiment.fedex.configs]
    for key, value in overrides.leaves(given):
        # A choice has a name, whether or not it was written.
        if not key.endswith(".name") and all(key in keys for keys in changed):
            yield Idle(f"client.{key}", f"client.{key} = {value!r} has no effect: all of fedex.configs set {key}")


def _nested(change: Mapping[str, Any]) -> dict[str, Any]:
    return overrides.apply({}, change, ())


def _all_clients(experiment: Experiment, population: int) -> Iterator[Idle]:
    """Yield what chooses among clients, where every round has all of them."""
    cohort, systems = experiment.cohort, experiment.systems
    sampler, size = cohort.sampler, cohort.size
    if isinstance(sampler, UniformSampler | AdaFl) and size is not None and size >= population:
        because = f"with cohort.size = {size} every round has all {population} training clients"
        if sampler.name != "uniform" and not _takes_first(experiment):
            text = f"cohort.sampler.name = {sampler.name!r} has no effect: {because}{_ORDER}"
            yield Idle("cohort.sampler", text)
        if cohort.growth is not None and cohort.growth.factor > 1:
            yield Idle("cohort.growth", f"cohort.growth has no effect: {because}")
        if systems is not None and systems.over_selection > 1:
            key = "systems.over_selection"
            yield Idle(key, f"{key} = {systems.over_selection:g} has no effect: {because}")
    elif isinstance(sampler, Bernoulli) and sampler.probability == 1:
        because = "with cohort.sampler.probability = 1 every round has all training clients"
    else:
        return
    if cohort.seed is not None and cohort.seed != experiment.seed and not _takes_first(experiment):
        yield Idle("cohort.seed", f"cohort.seed = {cohort.seed} has no effect: {because}{_ORDER}")


_ORDER = ", in another order, of which last digits may depend"


def _takes_first(experiment: Experiment) -> bool:
    """Whether the order of drawing may matter beyond last digits: of equal clients the first one counts."""
    return experiment.server.rule is not None or experiment.server.fairness is not None


def _min_reports(experiment: Experiment) -> Iterator[Idle]:
    systems, rule = experiment.systems, experiment.cohort.rule
    if systems is None or systems.min_reports == 1 or leaving(experiment.client, systems):
        return
    # With another sampler a cohort may have fewer clients than cohort.size, which min_reports does not exceed.
    if not (rule.varies or rule.repeats) and rule.sized_by is None and rule.choose is None:
        yield Idle(
            "systems.min_reports",
            f"systems.min_reports = {systems.min_reports} has no effect: all clients that are asked report, without "
            f"systems.deadline_s, systems.session_s and client.mid_round_dropout",
        )


def _weighting(experiment: Experiment) -> Iterator[Idle]:
    server, rule = experiment.server, experiment.server.rule
    said = "weighting" in server.model_fields_set and server.weighting == "examples"
    if said and rule is not None and rule.ignores_weights:
        yield Idle(
            "server.weighting",
            f"server.weighting = {server.weighting!r} has no effect: server.aggregator.name = {rule.name!r} counts "
            f"all clients alike",
        )


def _short_batches(experiment: Experiment) -> Iterator[Idle]:
    # A configuration of FedEx, or a later entry of the schedule, may have batches of another size.
    if any(section.batch_sizes for section in (experiment.client, *experiment.configurations)):
        return
    for key in ("fill_last_batch", "drop_last"):
        if getattr(experiment.client, key):
            yield Idle(
                f"client.{key}",
                f"client.{key} = true has no effect: with client.batch_size = 'full' an epoch is one batch, which is "
                f"not short",
            )
