"""Defines the protocol of a study: the experiments of its trials, and the final experiment on the test split.

A study divides the training clients into training and validation clients, and looks at evaluations of the latter only.
At the end the best configuration is trained on all of them, and evaluated on the test split.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from raysim import Experiment, ExperimentError, FederatedDataset, Parts, dataset_of, trials_of
from raysim.config.messages import nearest
from raysim.run_folder.passed_parts import Passed
from tuning.objective import Objective
from tuning.pruners import cohorts
from tuning.section import TuningSection
from tuning.space import COHORT_SIZE, Space

HELD_OUT = ("holdout", "holdout_examples")
"""Keys of sources; those whose clients are functions have only the first."""


def held_out(experiment: Experiment) -> dict[str, float]:
    """Return the shares of the training clients that `[data]` itself holds out, by key; none if there is no share."""
    return {key: share for key in HELD_OUT if (share := getattr(experiment.data, key, 0.0))}


def with_validation_clients(
    experiment: Experiment, tuning: TuningSection, dataset: FederatedDataset | None
) -> FederatedDataset | None:
    """Return the script's dataset, with validation clients; None if the experiment has a `[data]` section.

    Raises:
        DataError: the share leaves no client on one side.
    """
    if dataset is None or dataset.validation is not None:
        return dataset
    return dataset.hold_out(tuning.holdout, experiment.seed)


def check_vary(experiment: Experiment, tuning: TuningSection, parts: Parts) -> None:
    """Refuse a `tuning.vary` that a script's dataset or module does not follow.

    Raises:
        ExperimentError: the data are to vary and cannot, or the initial weights would vary and are not to.
    """
    if tuning.seeds == 1:
        return
    if "data" in tuning.vary and parts.get("dataset") is not None:
        raise ExperimentError(
            'tuning.vary has "data", but dataset= is the same for every seed: remove "data" there, or give the data by '
            "[data]."
        )
    if "model" not in tuning.vary and experiment.model is None and parts.get("params") is None:
        raise ExperimentError(
            'tuning.vary leaves "model" out, but without [model] every seed draws other initial weights: add [model] '
            'with name = "own", or add "model" there.'
        )


def evaluated_on_validation(
    experiment: Experiment, tuning: TuningSection, dataset: FederatedDataset | None
) -> Experiment:
    """Return the experiment that every trial of the study changes: evaluated on validation clients.

    With `record_test` it is evaluated on test, too: for other choices than the study's.

    Raises:
        ExperimentError: the objective is not defined on the data, holding out leaves no client on one side, or a trial
            would end by the test split.
    """
    splits = ["validation", "test"] if tuning.record_test else "validation"
    changes: dict[str, Any] = {"evaluation.split": splits, "evaluation.fine_tuning": None, "trials": 1}
    best = experiment.checkpoint.best
    if best is not None and best.metric.split("/")[1] not in (splits if tuning.record_test else (splits,)):
        changes["checkpoint.best"] = None
    percentile = tuning.objective.percentile
    if percentile is not None and percentile not in experiment.evaluation.percentiles:
        changes["evaluation.percentiles"] = [*experiment.evaluation.percentiles, percentile]
    data = experiment.data
    if dataset is None and data is not None and not held_out(experiment):
        whole = dataset_of(experiment)
        if whole.validation is None:
            changes["data.holdout"] = tuning.holdout
    elif dataset is None:
        whole = dataset_of(experiment)
    else:
        whole = dataset
    if whole.num_classes is None and tuning.objective.figure.is_share:
        raise ExperimentError(
            f"tuning.objective: {tuning.objective.name} needs classes, but the targets of these data are real numbers: "
            f"take loss or train_loss."
        )
    if tuning.record_test and whole.test is None:
        raise ExperimentError("tuning.record_test records evaluations on the test split, but these data have none.")
    if tuning.record_test:
        _check_stops_without_test(experiment)
    changed = experiment.model_copy(update={"tuning": None}).changed(changes)
    if dataset is None:
        # Checked here because the clients are known: before the first trial, not in it.
        dataset_of(changed)
    return changed


def _check_stops_without_test(experiment: Experiment) -> None:
    """Refuse conditions to stop by the test split: trials would end by it, and so be chosen by it."""
    for key, metric in ({} if experiment.stop is None else experiment.stop.metrics).items():
        if metric.split("/")[1:2] == ["test"]:
            raise ExperimentError(
                f"{key} = {metric!r} would end trials by the test split, which tuning.record_test records and the "
                f"study does not look at: take eval/validation/{metric.split('/')[-1]}."
            )


def check_metric(objective: Objective, experiment: Experiment, passed: Iterable[str]) -> None:
    """See that a metric that is optimised is measured; `passed`: names of those that a script passes.

    Raises:
        ExperimentError: it is none of those that are.
    """
    known = [*(str(getattr(each, "label", each.name)) for each in experiment.evaluation.metrics), *passed]
    if objective.metric is not None and objective.metric not in known:
        raise ExperimentError(
            f"tuning.objective.metric must be a metric of evaluation.metrics or metrics= "
            f"({', '.join(known) or 'there is none'}), but got {objective.metric!r}{nearest(objective.metric, known)}."
        )


def runs_of(measured: Experiment, tuning: TuningSection, values: Mapping[str, Any]) -> tuple[Experiment, ...]:
    """Return a trial's runs, one for each seed: the same seeds, and so the same cohorts, for every configuration."""
    return with_each_seed(measured.changed(values), tuning)


def stages_of(measured: Experiment, tuning: TuningSection, values: Mapping[str, Any]) -> list[tuple[Experiment, ...]]:
    """Return a trial's runs by stage: with each of the pruner's smaller cohorts, and last with the whole one."""
    smaller = [{**values, COHORT_SIZE: size} for size in cohorts(tuning.pruner)]
    return [runs_of(measured, tuning, of_stage) for of_stage in (*smaller, values)]


def final_experiment(experiment: Experiment, values: Mapping[str, Any]) -> Experiment:
    """Return a configuration on all training clients, evaluated as in the file, but never on validation clients."""
    changes: dict[str, Any] = dict(values)
    if experiment.data is not None:
        changes |= {f"data.{key}": 0.0 for key in HELD_OUT if key in type(experiment.data).model_fields}
    split = experiment.evaluation.split
    named = (split,) if isinstance(split, str) else split or ()
    if "validation" in named:
        changes["evaluation.split"] = [name for name in named if name != "validation"] or "test"
    return _unwatched(experiment.model_copy(update={"tuning": None}).changed(changes))


def of_final_runs(experiment: Experiment, tuning: TuningSection) -> list[str]:
    """Return the keys that are set and that only final runs have, which are not by validation clients alone."""
    evaluation, best = experiment.evaluation, experiment.checkpoint.best
    split = (evaluation.split,) if isinstance(evaluation.split, str) else evaluation.split or ()
    others = {*split} - {"validation"} - ({"test"} if tuning.record_test else set())
    found = ["evaluation.split"] if others else []
    found += [] if evaluation.fine_tuning is None else ["evaluation.fine_tuning"]
    return found + (["checkpoint.best"] if best is not None and not _is_of_validation(best.metric) else [])


def _unwatched(experiment: Experiment) -> Experiment:
    """Return the experiment without conditions to stop, and a best model, by validation clients: it has none."""
    stop, best = experiment.stop, experiment.checkpoint.best
    if stop is not None:
        gone = [key.split(".")[1] for key, metric in stop.metrics.items() if _is_of_validation(metric)]
        left = any(condition is not None for name, condition in stop if name not in gone)
        stop = stop.model_copy(update=dict.fromkeys(gone)) if left else None
    if best is not None and _is_of_validation(best.metric):
        best = None
    checkpoint = experiment.checkpoint.model_copy(update={"best": best})
    return experiment.model_copy(update={"stop": stop, "checkpoint": checkpoint})


def _is_of_validation(metric: str) -> bool:
    return metric.split("/")[1:2] == ["validation"]


def with_each_seed(experiment: Experiment, tuning: TuningSection) -> tuple[Experiment, ...]:
    """Return the experiment with each of the study's seeds."""
    return trials_of(experiment.changed({"trials": {"count": tuning.seeds, "vary": list(tuning.vary)}}))


def identity(
    measured: Experiment, tuning: TuningSection, space: Space, held: FederatedDataset | None, parts: Parts
) -> dict[str, Any]:
    """Return the common facts of all trials, as plain values; if one differs, it is another study.

    Args:
        measured: see `evaluated_on_validation`. held: the script's dataset, divided; None: the experiment's. parts: the
            script's.
    """
    kept = tuning.model_dump(mode="json", include={"objective", "seeds", "vary"})
    if tuning.cost is not None:
        kept["cost"] = tuning.cost
    if tuning.laplace:
        kept["laplace"] = tuning.laplace
    if passed := sorted(name for name, part in parts.items() if part is not None and name != "dataset"):
        kept["passed"] = passed
    if (given := Passed.of(parts)).params is not None:
        kept["params"] = given.params
    data = held if held is not None else dataset_of(measured)
    return {
        **measured.determining(),
        "rounds": measured.rounds,
        **({} if measured.stop is None else {"stop": measured.stop.model_dump(mode="json")}),
        "content of the data": data.fingerprint,
        "tuning": {
            **kept,
            "space": space.plain(),
            "sampler": json.loads(tuning.chosen_sampler().model_dump_json()),
            "pruner": json.loads(tuning.pruner.model_dump_json()),
        },
    }
