"""Plans the scoring of clients with models of their own: fine-tuned ones, and those of a personalisation."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from raysim.engine.plan.plan import Plan
from raysim.evaluation import personalised, scores
from raysim.experiment.experiment import Experiment


class OwnModels(NamedTuple):
    """What scores one kind of own models.

    key: of the experiment. metrics: the beginning of its metrics' names. of_all: the end of those of the model of all.
    rows: the beginning of the split in its rows. other: the beginning of columns with the figures of own models in rows
    with those of the model of all; or, where `own_first`, of the model of all in rows with those of own models.
    """

    key: str
    metrics: str
    of_all: str
    rows: str
    other: str
    own_first: bool


FINE_TUNED = OwnModels("evaluation.fine_tuning", "eval_tuned", "before", "fine_tuning", "tuned_", own_first=False)
PERSONAL = OwnModels("client.personalisation", "eval_personal", "global", "personal", "global_", own_first=True)
OF_METRICS = MappingProxyType({which.metrics: which for which in (FINE_TUNED, PERSONAL)})


def splits(experiment: Experiment) -> Mapping[OwnModels, str]:
    """Return the split on which each kind of own models is scored, of those that the experiment has."""
    tuning, personal = experiment.evaluation.fine_tuning, experiment.client.personalisation
    found = {FINE_TUNED: tuning, PERSONAL: personal}
    return {which: section.split for which, section in found.items() if section is not None}


def units(plan: Plan, which: OwnModels, name: str) -> tuple[personalised.Unit, ...]:
    """Plan the units over the evaluated clients of a split that are training clients too.

    Raises:
        DataError, ExperimentError: there is no such split, or no such client.
    """
    split = plan.dataset.split(name)
    chosen = scores.sample_clients(split, plan.experiment.evaluation.clients, plan.experiment.seed)
    return personalised.plan(name, split, plan.dataset.train, chosen.tolist(), which.key)
