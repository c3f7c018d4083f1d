"""Defines `tune`, which runs a study of an experiment to its result."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from optuna.trial import FrozenTrial

from raysim import Experiment, FederatedDataset, Runs
from raysim.api.interrupted import noting
from raysim.config.flag import check_choice, check_flag
from raysim.storage.atomic import write_text
from tuning import best_file, client_scores, kept_trial, pictures, protocol, result, trials_file
from tuning.conclude import check_evaluation, conclude
from tuning.errors import StudyError
from tuning.ledger import Ledger
from tuning.log_filter import quiet_hosts, quiet_rounds
from tuning.opening import OpenStudy, opened, warn
from tuning.result import Study
from tuning.search import Search
from tuning.study_plan import StudyPlan, plan, unit_of
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
            example after your code was mended. The new ones take their places in every count and budget; none
            begins once the budget is used up.
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
    check_choice("progress", progress)
    check_flag("retry_failed", retry_failed)
    planned = plan(experiment, space, path, parts_and_settings)
    again = f"stopped; the same call of tuning.tune continues the study in {planned.named}"
    with ExitStack() as stack:
        stack.enter_context(noting(lambda: again))
        stack.enter_context(quiet_rounds())
        working = stack.enter_context(opened(planned, progress))
        _begin(planned, working, retry_failed)
        trials = _carry_out(planned, working, {"executor": executor, "address": address, **planned.parts})
        return replace(_finished(planned, working.ledger, trials, source), path=planned.named)


def _begin(planned: StudyPlan, working: OpenStudy, retry_failed: bool) -> None:
    """Put failed trials back if asked, and tell what there is of the study.

    Raises:
        StudyError: its final runs were evaluated otherwise.
    """
    ledger, show = working
    check_evaluation(planned.experiment, ledger.study.user_attrs, planned.folder)
    if retry_failed:
        if again := ", ".join(map(str, ledger.retry_failed())):
            far = "" if planned.tuning.budget is None else ", as far as the budget goes"
            show.print_line(f"run again{far}: trial {again}")
        else:
            log.warning("no trial is run again, because none has failed")
    waiting = ledger.waiting()
    # One that was ended when a process was killed may have an outcome, and no value.
    ended = [t for t in ledger.by_slot().values() if t.state.is_finished() and t.number not in waiting]
    warn(planned, ended)
    before = result.rank_trials(ended, planned.space, planned.tuning.objective)
    if before and before[0].missed is None:
        show.begun_with(before[0].value)


def _carry_out(planned: StudyPlan, working: OpenStudy, how: Mapping[str, Any]) -> list[FrozenTrial]:
    """Run all trials and the final runs of the best; returns the trials.

    Raises:
        StudyError: no trial finished.
    """
    tuning, where, (ledger, show) = planned.tuning, planned.folder, working
    dataset = planned.parts.get("dataset")
    with _runs(planned.measured, planned.held, how) as runs:
        Search(tuning, planned.measured, ledger, runs, where, show).run()
        if waiting := ", ".join(map(str, ledger.waiting())):
            log.warning("not run again, because tuning.budget has no room for them: failed trials %s", waiting)
        trials = list(ledger.by_slot().values())
        trials_file.write(where, trials, planned.space, tuning.objective, kept_trial.digest(planned.identity))
        best = result.rank_trials(trials, planned.space, tuning.objective)
        if not best:
            raise StudyError(result.no_result(trials, planned.space))
        chosen = {each.number: each.values for each in (best[: tuning.final] if planned.tests else [])}
        if dataset is None:
            conclude(planned.experiment, tuning, ledger, runs, chosen, where, show)
    if dataset is not None:
        # The final runs train the script's own clients, those that were held out included.
        with _runs(planned.experiment, dataset, how) as runs:
            conclude(planned.experiment, tuning, ledger, runs, chosen, where, show)
    return trials


def _finished(planned: StudyPlan, ledger: Ledger, trials: Sequence[FrozenTrial], source: str | None) -> Study:
    """Return the result, whose files and pictures are written."""
    experiment, tuning, space, where = planned.experiment, planned.tuning, planned.space, planned.folder
    study = ledger.study
    found = result.rank_trials(trials, space, tuning.objective, study.user_attrs)
    regret = client_scores.regret(where, trials, tuning.objective)
    searched = result.Searched(experiment.name, tuning.objective, tuning.cost, unit_of(tuning), space)
    finished = replace(result.of_trials(searched, trials, found, where), regret=regret)
    write_best(experiment, finished, source)
    pictures.draw_all(finished, space, study, experiment.report)
    return finished


def _runs(experiment: Experiment, dataset: FederatedDataset | None, how: Mapping[str, Any]) -> Runs:
    with quiet_hosts():
        return Runs(experiment, **{**how, "dataset": dataset})


def write_best(experiment: Experiment, study: Study, source: str | None) -> None:
    """Write best.toml; `source`: the experiment's file."""
    best = protocol.final_experiment(experiment, {"name": f"{experiment.name}-best", **study.best.values})
    value = study.best.missed or figure(study.objective, study.best.value)
    heading = f"The best of {study.trials.num_rows} trials of {study.name}: {study.objective.label} {value}."
    text = best_file.text(best, source, heading)
    write_text(study.path / "best.toml", text)
