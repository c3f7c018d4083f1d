"""Checks a run against the content of its folder, before anything is written."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from raysim import card
from raysim.config.counted import counted
from raysim.config.section import replaced
from raysim.config.torch_settings import as_on_workers
from raysim.engine.parts import Parts
from raysim.engine.plan.first_answers import DROPOUT, answers
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.opening import Opening
from raysim.errors import ExperimentError, ResourceError, RunFolderError
from raysim.experiment import differences, stopping
from raysim.experiment.experiment import EngineSection, Experiment
from raysim.run_folder import beginning, experiment_record, files, frozen, going_on, other_data, round_table
from raysim.run_folder.checkpoint_check import check_fits
from raysim.run_folder.passed_parts import Passed
from raysim.run_folder.writer import RunFolder
from raysim.storage import lock

log = logging.getLogger("raysim")

ExecutorName = Literal["local", "ray"]

AFRESH = "Give the run another folder (--path, path=), or start afresh (--overwrite, overwrite=True)."
"""What to do about a folder of another run, into which a run is to write."""

ITS_PARTS = "Pass the parts that the run had (dataset=, model=, params= and so on), from a script if they are of one."
"""What to do about a folder of another run, which is only read."""


def folder_of(experiment: Experiment, path: str | Path | None) -> str | Path:
    """Return the run's folder, or its URI: `path`, else the experiment's default folder."""
    return path if path is not None else experiment.default_folder


def check_one_way(resume: bool, overwrite: bool) -> None:
    """Raise RunFolderError if a folder should both go on and start afresh."""
    if resume and overwrite:
        raise RunFolderError("resume=True continues a folder, and overwrite=True starts it afresh: choose one.")


def opening_of(plan: Plan, path: Path, resume: bool, overwrite: bool = False, profile: bool = False) -> Opening:
    """Decide how to open the run's folder; nothing is written.

    Raises:
        RunFolderError: the folder exists already, or belongs to another run, or another process writes to it.
    """
    check_one_way(resume, overwrite)
    if not resume or beginning.is_unbegun(path):
        RunFolder.check_free(path, overwrite)
        return Opening(path, None, overwrite, profile)
    lock.check_free(path)
    # Before all that is compared: what replaces the run later has another one.
    owner = experiment_record.stored_owner(path)
    check_same(plan, path)
    check_answers(plan, path)
    found = going_on.begun(path, plan.experiment)
    if found.state is None:
        experiment_record.check_start(path, plan.passed)
        if num_rows := round_table.read_rounds(path).num_rows:
            log.warning(
                "%s has the rows of %s, and no checkpoint to go on from: its run begins again, with the same numbers",
                path,
                counted(num_rows, "round"),
            )
    else:
        check_fits(found.state, plan.begins, path)
        if plan.passed.has_params and not plan.passed.begins_as(experiment_record.stored_passed(path) or plan.passed):
            log.warning("params= is not used: the run of %s goes on from its checkpoint", path)
        is_over = stopping.is_over(plan.experiment, found.done, found.stopped)
        if not is_over and (other := experiment_record.other_versions(path)):
            log.warning(
                "the run of %s goes on with other versions: %s; further rounds may have other numbers, at least in "
                "their last digits",
                path,
                ", ".join(other),
            )
    return Opening(path, found.done, profile=profile, stopped=found.stopped, owner=owner)


def check_one(experiment: Experiment, path: Path | None = None) -> None:
    """Refuse an experiment of several trials, or a folder that holds them or a sweep."""
    if path is not None and experiment.trials.count < 2 and not experiment_record.stored_fingerprint(path):
        if not os.path.lexists(path / files.SWEEP):
            raise RunFolderError(
                f"{path} holds a sweep that has lost its {files.SWEEP}, which says what it goes through: put it back, "
                f"or take one of the folders of its runs."
            )
        raise RunFolderError(
            f"{path} holds a sweep, and this is for one run: take one of its folders, or go on with all by `raysim "
            f"resume {path}` or raysim.run_sweep(experiment, values, path=..., resume=True)."
        )
    if experiment.trials.count < 2:
        return
    if path is not None:
        raise RunFolderError(
            f"{path} holds {experiment.trials.count} trials, and this is for one run: take one of their folders, such "
            f"as {path / 'trial-0'}, or go on with all by raysim.run_trials(experiment, path=..., resume=True)."
        )
    raise ExperimentError(
        f"The experiment asks for {experiment.trials.count} trials, and this is for one run: call "
        f"raysim.run_trials(experiment), or take one of raysim.trials_of(experiment)."
    )


def check_same(plan: Plan, path: Path, advice: str = AFRESH) -> None:
    """Refuse a folder of a run with other settings or data; `advice` says what to do."""
    check_one(experiment_record.stored_experiment(path), path)
    _check_passed(plan.passed, path)
    if plan.fingerprint != experiment_record.stored_fingerprint(path):
        differing = differences.settings(experiment_record.stored_experiment(path), plan.experiment)
        other_frozen = frozen.other_values(path, plan.model.constants)
        differing += frozen.otherwise_frozen(path, plan.model.constants)
        if other_frozen and not differing and _lacks_params(plan.passed, path):
            raise RunFolderError(
                f"The run of {path} was passed params= by its script, and without them {other_frozen[0]}: pass the "
                f"same again."
            )
        differing += other_frozen
        differing = differing or [other_data.differing(path, plan.dataset, plan.passed) or _other_course(plan, path)]
        raise RunFolderError(
            f"{path} was run with other settings, so it is not a run of this experiment: {'; '.join(differing)}. "
            f"{advice}{experiment_record.other_version(path)}"
        )


@as_on_workers()
def check_answers(plan: Plan, path: Path) -> None:
    """Refuse to go on with a module, a loss or an objective with other answers than at the run's start."""
    if other := _other_answers(plan, path):
        raise RunFolderError(
            f"{path} cannot be continued: {other}. Pass the same part again, or give the run another folder (--path, "
            f"path=)."
        )


def _other_answers(plan: Plan, path: Path) -> str:
    """Return which parts of the script answer differently from at the run's start; empty if none does."""
    had = experiment_record.stored_passed(path)
    if had is None or not had.answers:
        return ""
    if "model" in had.answers and (tensors := other_tensors(plan, path)):
        return f"model= returned another module: {tensors}"
    other = had.answers_otherwise(plan.passed._replace(answers=answers(plan)))
    if other == [DROPOUT]:
        return "model= has other rates of dropout than at the run's start"
    named = " and ".join(f"{name}=" for name in other if name != DROPOUT)
    return f"{named} gave other numbers for the first client's examples at the run's start" if other else ""


def _lacks_params(passed: Passed, path: Path) -> bool:
    had = experiment_record.stored_passed(path)
    return had is not None and had.has_params and not passed.has_params


_IN_C: Mapping[str, str] = MappingProxyType(
    {
        "winograd": "convolutions",
        "lstm": "LSTMs",
        "depthwise": "depthwise convolutions",
        "classes": "gradients of cross entropy",
        "counted": "texts without their padding",
    }
)
"""What the record of a run calls what was computed in C, and what messages call it."""


def _other_course(plan: Plan, path: Path) -> str:
    """Return the likely cause of another fingerprint where settings, data and frozen parameters are the same."""
    if other := other_tensors(plan, path):
        return f"model= returned another module: {other}"
    if other := _other_answers(plan, path):
        return other
    before, now = experiment_record.stored_trained_by(path) or {}, plan.choice.record
    for key in now:
        if key in before and before[key] != now[key]:
            return (
                f"engine.{key} = 'auto' meant {before[key]!r} there, and means {now[key]!r} here, because of another "
                f"kind of device, of module or of loss, or for want of a C compiler"
            )
    for name, what in _IN_C.items():
        if before.get(name) and not now.get(name):
            return (
                f"its {what} were computed by a compiled library, which takes a CPU, float32, a C compiler and "
                f"engine.threads = 1: go on with these, as on the machine where the run began"
            )
    if plan.experiment.model is not None and plan.experiment.model.init is not None:
        return "the values of model.init were others"
    return (
        f"the size of chunks, which engine.chunk_size = 'auto' leaves to module, loss and device, was another, or "
        f"{path / files.RECORD} is not the record of this run"
    )


MOST_NAMED = 3
"""Tensors in a message."""


def other_tensors(plan: Plan, path: Path) -> str:
    """Return how the module's tensors differ from those that the folder records; empty where they do not."""
    recorded: Mapping[str, Any] = plan.stated.record
    was, now = (
        {name: tuple(shape) for part in record.values() for name, shape in part}
        for record in (experiment_record.stored_tensors(path) or recorded, recorded)
    )
    said = [
        f"{name} had shape {was[name]}, and has {now[name]}" for name in was if now.get(name, was[name]) != was[name]
    ]
    said += [f"{name} is new" for name in now if name not in was]
    said += [f"{name} is missing" for name in was if name not in now]
    more = [f"and {len(said) - MOST_NAMED} more"] if len(said) > MOST_NAMED else []
    return ", ".join([*said[:MOST_NAMED], *more])


def check_has_parts(experiment: Experiment, path: Path, parts: Parts, call: str) -> None:
    """Refuse a call without the data or the model that the run's script passed, and name all parts that are missing.

    The data may come from `[data]`. The folder holds the initial values. Without a loss the task's own is used.

    Args:
        experiment: the run's own.
        path: the run's folder.
        parts: those that are passed now.
        call: how the call that takes them begins, for the message: "raysim.resume(path".
    """
    had = experiment_record.stored_passed(path)
    if had is None:
        return
    elsewhere = {"params", "loss"} | ({"dataset"} if experiment.data else set())
    lacking = [name for name in had.names if parts.get(name) is None and name not in elsewhere]
    # What else is missing alone has messages of its own, which name the section.
    if {"dataset", "model"} & set(lacking):
        raise _without(lacking, path, call)


def _without(lacking: Sequence[str], path: Path, call: str) -> RunFolderError:
    named = ", ".join(f"{name}=" for name in lacking)
    return RunFolderError(
        f"The run of {path} was passed {named} by its script: pass the same again, from a script: "
        f"{call}, {', '.join(f'{name}=...' for name in lacking)})."
    )


def _check_passed(passed: Passed, path: Path) -> None:
    """Refuse a folder of a run whose script passed parts that are not passed now, or no model where one is.

    Data are known by their fingerprint, and frozen parameters by their values: both may come from elsewhere. A loss
    that is missing is said only: a run may go on with the task's own.
    """
    had = experiment_record.stored_passed(path)
    if had is None:
        return
    for name in had.other_code(passed):
        log.warning(
            "%s= has other code than when the run of %s began; whether its numbers are the same, raysim cannot tell",
            name,
            path,
        )
    other = [name for name in had.other_names(passed) if name != "params"]
    lacking = [name for name in other if name in had.names]
    if lacking == ["loss"]:
        log.warning("the run of %s was passed loss= by its script, and now the task's own loss is used", path)
    elif lacking:
        raise _without(lacking, path, "raysim.resume(path")
    new = [name for name in other if name in passed.names]
    if "model" in new:
        raise RunFolderError(f"The run of {path} trains the experiment's [model], so model= cannot be passed.")
    if "loss" in new:
        log.warning("the run of %s had the task's own loss, and now loss= of the script is used", path)


def check_alike(passed: Passed, folders: Sequence[Path]) -> None:
    """Refuse runs of one series that would begin with other parts, or at other values, than those that are there.

    Args:
        passed: what the script passes to all of them now.
        folders: of all runs, those that are there and those to come.

    Raises:
        RunFolderError: one run is still to begin, and another one had other parts; says which.
    """
    new = next((path for path in folders if beginning.is_unbegun(path)), None)
    if new is None:
        # A run that is there says itself what it needs to go on.
        return
    for path in folders:
        had = None if beginning.is_unbegun(path) else experiment_record.stored_passed(path)
        if had is None:
            continue
        other = had.other_names(passed)
        reasons = [
            f"it was passed {name}= by its script, which is not passed now" for name in other if name in had.names
        ]
        reasons += [f"{name}= is passed now, and was not" for name in other if name in passed.names]
        if not reasons and not had.begins_as(passed):
            reasons = ["it began at other values than those of params= now"]
        if reasons:
            raise RunFolderError(
                f"{new} would begin differently from {path}, so they are not runs of one series: {'; '.join(reasons)}. "
                f"Pass the same parts, from a script, or give the new runs another folder (--path, path=)."
            )


def is_whole(plan: Plan, opening: Opening) -> bool:
    """Whether the folder holds the complete run already."""
    return opening.done is not None and stopping.is_over(plan.experiment, opening.done, opening.stopped)


def check_here(engine: EngineSection, address: str | None) -> None:
    """Refuse, for a run in this process, what only workers have: an address, and a card that is not there."""
    if address is not None:
        raise ExperimentError(
            "The run is to train in this process (--local, executor='local' or engine.workers = 0), and on the cluster "
            f"at {address!r} (--address, address=): choose one."
        )
    if engine.gpus_per_worker not in (0, "auto") and not card.is_there():
        raise ResourceError(
            f"engine.gpus_per_worker = {engine.gpus_per_worker:g} asks for a card, and this process, in which the run "
            "is to train, has none: leave the key out, or set it to 0."
        )


def with_executor(experiment: Experiment, executor: ExecutorName | None) -> Experiment:
    """Return the experiment with `executor=` entered in its engine section."""
    if executor == "local":
        engine = replaced(experiment.engine, workers=0)
    elif executor == "ray" and experiment.engine.workers == 0:
        engine = replaced(experiment.engine, workers="auto")
    elif executor in (None, "ray"):
        return experiment
    else:
        raise ExperimentError(f"executor must be 'local' or 'ray', but got {executor!r}.")
    return replaced(experiment, engine=engine)
