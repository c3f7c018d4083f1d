"""How a study measures: which experiments its trials are, and which the last one is that looks at the test split.

In a study the training clients are divided into training and validation clients, and only the latter are evaluated.
At the end the best configuration is trained on all of them, and evaluated on the test split.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from raysim import Experiment, ExperimentError, FederatedDataset, dataset_of, trials_of
from tuning.objective import Objective
from tuning.section import TuningSection
from tuning.space import Space


def divided(experiment: Experiment, tuning: TuningSection, dataset: FederatedDataset | None) -> FederatedDataset | None:
    """The dataset that a script passed, with validation clients; None where the experiment has data of its own.

    Raises:
        DataError: the share leaves no client on one side.
    """
    if dataset is None or dataset.validation is not None:
        return dataset
    return dataset.hold_out(tuning.holdout, experiment.seed)


def measured(experiment: Experiment, tuning: TuningSection, dataset: FederatedDataset | None) -> Experiment:
    """The experiment that every trial of the study changes: evaluated on validation clients, and on nothing else.

    Raises:
        ExperimentError: the objective is not defined on the data, or holding out leaves no client on one side.
    """
    changes: dict[str, Any] = {"evaluation.split": "validation", "evaluation.fine_tuning": None, "trials": 1}
    wanted = tuning.objective.percentile
    if wanted is not None and wanted not in experiment.evaluation.percentiles:
        changes["evaluation.percentiles"] = [*experiment.evaluation.percentiles, wanted]
    data = experiment.data
    if dataset is None and data is not None and not data.holdout and not data.holdout_examples:
        whole = dataset_of(experiment)
        if whole.validation is None:
            changes["data.holdout"] = tuning.holdout
    elif dataset is None:
        whole = dataset_of(experiment)
    else:
        whole = dataset
    if whole.num_classes is None and tuning.objective.is_share:
        raise ExperimentError(
            f"tuning.objective: {tuning.objective.name} needs classes, but the targets of these data are real numbers: "
            f"take loss or train_loss."
        )
    changed = experiment.model_copy(update={"tuning": None}).changed(changes)
    if dataset is None:
        # What holding out leaves is known once the clients are: before the first trial, not in it.
        dataset_of(changed)
    return changed


def check_metric(objective: Objective, experiment: Experiment, passed: Iterable[str]) -> None:
    """See that a metric that is optimised is measured; `passed`: names of those that a script passes.

    Raises:
        ExperimentError: it is none of those that are.
    """
    known = [*(str(getattr(each, "label", each.name)) for each in experiment.evaluation.metrics), *passed]
    if objective.metric is not None and objective.metric not in known:
        raise ExperimentError(
            f"tuning.objective.metric must be a metric of evaluation.metrics or metrics= "
            f"({', '.join(known) or 'there is none'}), but got {objective.metric!r}."
        )


def runs_of(measured: Experiment, tuning: TuningSection, values: Mapping[str, Any]) -> tuple[Experiment, ...]:
    """A trial's runs, one for each seed: the same seeds, and so the same cohorts, for every configuration."""
    return seeded(measured.changed(values), tuning)


def concluding(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """A configuration on all training clients, evaluated where the file says, but never on validation clients."""
    changes: dict[str, Any] = dict(values)
    if experiment.data is not None:
        changes |= dict.fromkeys(("data.holdout", "data.holdout_examples"), 0.0)
    split = experiment.evaluation.split
    named = (split,) if isinstance(split, str) else split or ()
    if "validation" in named:
        changes["evaluation.split"] = [name for name in named if name != "validation"] or "test"
    return experiment.model_copy(update={"tuning": None}).changed(changes)


def seeded(experiment: Experiment, tuning: TuningSection) -> tuple[Experiment, ...]:
    """The experiment with each of the study's seeds."""
    return trials_of(experiment.changed({"trials": {"count": tuning.seeds, "vary": list(tuning.vary)}}))


def identity(
    measured: Experiment, tuning: TuningSection, space: Space, held: FederatedDataset | None
) -> dict[str, Any]:
    """What all trials of a study have in common, as plain values: where one differs, it is another study.

    Args:
        measured: see there. held: the dataset that a script passed, divided; None: the experiment's own.
    """
    kept = tuning.model_dump(mode="json", include={"objective", "seeds", "vary"})
    data = held if held is not None else dataset_of(measured)
    return {
        **measured.determining(),
        "rounds": measured.rounds,
        "content of the data": data.fingerprint,
        "tuning": {
            **kept,
            "space": space.plain(),
            "sampler": json.loads(tuning.chosen_sampler().model_dump_json()),
            "pruner": json.loads(tuning.pruner.model_dump_json()),
        },
    }
