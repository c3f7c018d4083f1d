"""Defines `tune`, which runs a study of an experiment to its result."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import optuna

from raysim import Experiment, ExperimentError, FederatedDataset, Parts, Runs, Section, dataset_of
from raysim.api.interrupted import noting
from raysim.experiment.experiment import check_kind
from raysim.storage.atomic import write_text
from tuning import (
    best_file,
    client_scores,
    folder,
    kept_trial,
    pictures,
    protocol,
    pruners,
    result,
    samplers,
    trials_file,
)
from tuning import section as sections
from tuning.budget import CLIENT_UPDATES, StudyBudget, written
from tuning.conclude import conclude
from tuning.errors import StudyError
from tuning.ledger import Ledger, open_study
from tuning.log_filter import quiet_hosts, quiet_rounds
from tuning.processes import Processes
from tuning.progress import StudyProgress
from tuning.recorded import UNIT
from tuning.result import Configuration, Study
from tuning.search import Search
from tuning.section import TuningSection
from tuning.space import Space
from tuning.storage import answering, default_url, open_storage, portable_address, shown
from tuning.writing import figure

log = logging.getLogger("raysim")


def tune(
    experiment: Experiment,
    space: Mapping[str, Any] | None = None,
    *,
    executor: Literal["local", "ray"] | None = None,
    address: str | None = None,
    path: str | Path | None = None,
    progress: bool | None = None,
    source: str | None = None,
    retry_failed: bool = False,
    **parts_and_settings: Any,
) -> Study:
    """Search the best values of some of the experiment's keys on held-out clients; then evaluate them on test.

    A second call resumes the study: finished trials are kept, and trials under way resume from their checkpoints.
    Several processes may work on one study at a time, with the same storage and the same folder.

    Args:
        experiment: the experiment to tune, by its `[tuning]`.
        space: dotted key -> values, such as {"client.optimizer.lr": {"log": [1e-3, 1]}}; in place of `[tuning.space]`.
        executor, address: as for `raysim.run`.
        path: the study's folder, by default runs/<name>-tuning.
        progress: a line for each trial, and a bar on a terminal; by default on a terminal and in a notebook.
        source: the experiment's file, whose comments best.toml keeps.
        retry_failed: run the trials of an earlier call that failed again, with the same values and a new number, for
            example after your code was mended. The new ones take their places in every count and budget.
        parts_and_settings: the parts for `raysim.run` (`raysim.Parts`), the same for every trial; a dataset without
            validation clients holds out some training clients. Also keys of `[tuning]`, such as trials=20 or
            storage="sqlite:///study.db". `sampler` as a table is the study's, as a function that of the cohorts.

    Raises:
        ExperimentError: a key, a value, or a combination that is not defined, before anything runs.
        StorageError: the storage cannot be reached, or no longer answers.
        StudyError: the storage has another study of that name, or more ended trials than `trials`, or the folder is
            of another study; or no trial finished.
        RaysimError: as `raysim.run`; a second call resumes trials under way.
    """
    parts, tuning = parts_and_section(experiment, space, parts_and_settings)
    dataset = parts.get("dataset")
    where = Path(path) if path is not None else default_folder(experiment)
    if ":/" in str(where):
        raise StudyError(
            f"A study's folder must be a path of this machine or of a shared disk, because several processes write to "
            f"its database, but got {where}. Put the best run elsewhere instead: raysim run best.toml --path URI"
        )
    if (where / "experiment.json").exists():
        raise StudyError(f"{where} is a run's folder: give the study another one (--path, path=).")
    measured = protocol.evaluated_on_validation(experiment, tuning, dataset)
    held = protocol.with_validation_clients(experiment, tuning, dataset)
    whole = dataset if dataset is not None else dataset_of(experiment)
    name, read = experiment.name, tuning.parsed_space()
    url = tuning.storage or default_url(where)
    folder.check_links(where)
    folder.check(where, portable_address(url, where), name)
    how: dict[str, Any] = {"executor": executor, "address": address, **parts}
    with ExitStack() as stack:
        stack.enter_context(noting(lambda: f"stopped; the same call of tuning.tune continues the study in {where}"))
        stack.enter_context(quiet_rounds())
        stack.enter_context(answering(url))
        if tuning.storage is None:
            where.mkdir(parents=True, exist_ok=True)
        storage = stack.enter_context(open_storage(url))
        where.mkdir(parents=True, exist_ok=True)
        identity = protocol.identity(measured, tuning, read, held, parts)
        way_out = folder.way_out(tuning.storage is not None, path is not None)
        open_study(storage, name, tuning.directions, identity, shown(url), way_out)
        folder.claim(where, portable_address(url, where), name, kept_trial.digest(identity))
        optuna.load_study(study_name=name, storage=storage).set_user_attr(UNIT, unit_of(tuning))
        show = stack.enter_context(StudyProgress.where_wanted(progress, tuning.objective))
        processes = stack.enter_context(Processes(storage, name))
        ledger = _ledger(storage, processes, measured, tuning, read)
        # Folders are listed first: another process of the study writes to its storage before it makes one.
        with_folder = folder.trials_of(where)
        ledger.by_slot()
        if lost := [number for number in with_folder if number >= ledger.num_trials()]:
            raise StudyError(
                f"{where} holds trials of the study, but its storage, {shown(url)}, has "
                f"{'none of them' if not ledger.num_trials() else f'no trial {lost[0]}'}: restore the storage, or give "
                f"the study another folder (--path, path=)."
            )
        if (beyond := ledger.num_beyond()) > 0:
            total = ledger.total
            raise StudyError(
                f"{where} has {total + beyond} ended trials, and tuning.trials = {total} would leave {beyond} of them "
                f"out: set it to {total + beyond} or more, or give another study its own name and folder (--path)."
            )
        if retry_failed:
            again = ", ".join(map(str, ledger.retry_failed()))
            show.print_line(f"run again: trial {again}" if again else "run again: none, because no trial had failed")
        # One that was ended when a process was killed may have an outcome, and no value.
        ended = [trial for trial in ledger.by_slot().values() if trial.state.is_finished()]
        text = _used_up(tuning.budget, result.total_cost(ended))
        if not ended:
            text = _too_small(tuning, measured, len((held or dataset_of(measured)).train))
        if text is not None:
            log.warning("%s", text)
        if of_data := [key for key in read.dimensions if key.startswith("data.")]:
            log.warning(
                "tuning.space varies %s: trials differ in their data, so each is measured on validation clients of its "
                "own",
                of_data[0],
            )
        before = result.rank_trials(ended, read, tuning.objective)
        if before and before[0].missed is None:
            show.begun_with(before[0].value)
        with _runs(measured, held, how) as runs:
            Search(tuning, measured, ledger, runs, where, show).run()
            trials = list(ledger.by_slot().values())
            trials_file.write(where, trials, read, tuning.objective, kept_trial.digest(identity))
            best = result.rank_trials(trials, read, tuning.objective)
            if not best:
                raise StudyError(result.no_result(trials, read))
            chosen = best[: tuning.final] if whole.test is not None else []
            if dataset is None:
                _conclude(experiment, tuning, ledger, runs, chosen, where, show)
        if dataset is not None:
            with _runs(experiment, dataset, how) as runs:
                _conclude(experiment, tuning, ledger, runs, chosen, where, show)
        study = ledger.study
        found = result.rank_trials(trials, read, tuning.objective, study.user_attrs)
        regret = client_scores.regret(where, trials, tuning.objective)
        made = result.of_trials(name, tuning.objective, tuning.cost, unit_of(tuning), read, trials, found, where)
        finished = replace(made, regret=regret)
        write_best(experiment, finished, source)
        pictures.draw_all(finished, read, study, experiment.report)
    return finished


TABLES = MappingProxyType({"sampler": "tpe", "objective": "accuracy"})
"""A name for an example of each table that a study and a run both have."""


def parts_and_section(
    experiment: Experiment, space: Mapping[str, Any] | None, parts_and_settings: Mapping[str, Any]
) -> tuple[Parts, TuningSection]:
    """Return a script's parts, and `[tuning]` with its keys, checked; arguments as for `tune`."""
    check_kind(experiment)
    # A sampler of cohorts is a function, the study's a table.
    tables = {name for name, value in parts_and_settings.items() if isinstance(value, Mapping | Section)}
    both = Parts.__annotations__.keys() & TuningSection.model_fields.keys()
    for name in both:
        if isinstance(word := parts_and_settings.get(name), str):
            raise ExperimentError(
                f"{name}= of a study is a table, such as {{'name': {TABLES[name]!r}}}, but got the text {word!r:.40}."
            )
    named = Parts.__annotations__.keys() - (tables & both)
    parts = cast("Parts", {name: part for name, part in parts_and_settings.items() if name in named})
    settings = {name: value for name, value in parts_and_settings.items() if name not in named}
    keys = {**(experiment.tuning or {}), **({"space": dict(space)} if space is not None else {}), **settings}
    tuning = sections.checked_section(keys, experiment) if keys else sections.section_of(experiment)
    protocol.check_metric(tuning.objective, experiment, parts.get("metrics") or {})
    return parts, tuning


def default_folder(experiment: Experiment) -> Path:
    """Return the default folder of a study of the experiment."""
    return Path("runs") / f"{experiment.name}-tuning"


def _used_up(budget: StudyBudget | None, spent: Mapping[str, float]) -> str | None:
    """Return that no trial will begin, because a study that goes on has used up its budget; None if it has not."""
    if budget is None or (used := spent.get(budget.unit, 0.0)) < budget.amount:
        return None
    return (
        f"the study has used {written(budget.unit, used)} already, and tuning.budget.{budget.unit} = "
        f"{budget.amount:,.12g}: no further trial begins"
    )


def _too_small(tuning: TuningSection, measured: Experiment, clients: int) -> str | None:
    """Return that the budget is enough for one trial only, where what a trial uses is known before; else None."""
    budget, vary = tuning.budget, tuning.parsed_space().dimensions
    if budget is None or not isinstance(tuning.pruner, pruners.NoPruner):
        return None
    if any(key == "rounds" or key.startswith("cohort.") for key in vary):
        return None
    size = measured.cohort.size_at(clients)
    each = {"rounds": measured.rounds, CLIENT_UPDATES: sum(int(size(index)) for index in range(measured.rounds))}
    one = tuning.seeds * each.get(budget.unit, 0)
    if one <= budget.amount:
        return None
    seeds = f" with its {tuning.seeds} seeds" if tuning.seeds > 1 else ""
    return (
        f"tuning.budget.{budget.unit} = {budget.amount:,.12g} is less than one trial{seeds} uses, "
        f"{written(budget.unit, one)}: the study will have one trial"
    )


def _runs(experiment: Experiment, dataset: FederatedDataset | None, how: Mapping[str, Any]) -> Runs:
    with quiet_hosts():
        return Runs(experiment, **{**how, "dataset": dataset})


def _conclude(
    experiment: Experiment,
    tuning: TuningSection,
    ledger: Ledger,
    runs: Runs,
    chosen: list[Configuration],
    where: Path,
    show: StudyProgress,
) -> None:
    conclude(experiment, tuning, ledger, runs, {c.number: c.values for c in chosen}, where, show)


def _ledger(
    storage: optuna.storages.BaseStorage,
    processes: Processes,
    measured: Experiment,
    tuning: TuningSection,
    space: Space,
) -> Ledger:
    sampler, rounds, every = tuning.chosen_sampler(), measured.rounds, measured.evaluation.every
    return Ledger(
        storage,
        measured.name,
        processes,
        space,
        tuning.num_trials(),
        lambda slot: samplers.make(sampler, space, measured.seed, slot),
        pruners.make(tuning.pruner, rounds, every),
        tuning.budget,
    )


def unit_of(tuning: TuningSection) -> str:
    """Return what the study's budget counts, or would count."""
    return CLIENT_UPDATES if tuning.budget is None else tuning.budget.unit


def write_best(experiment: Experiment, study: Study, source: str | None) -> None:
    """Write best.toml; `source`: the experiment's file."""
    best = protocol.final_experiment(experiment, {"name": f"{experiment.name}-best", **study.best.values})
    value = study.best.missed or figure(study.objective, study.best.value)
    heading = f"The best of {study.trials.num_rows} trials of {study.name}: {study.objective.label} {value}."
    text = best_file.text(best, source, heading)
    write_text(study.path / "best.toml", text)
