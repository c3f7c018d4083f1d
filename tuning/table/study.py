"""Defines `tune_on`: a study whose trials are read from a table in place of training."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim import Experiment, ExperimentError, differing
from raysim.storage.remote.uri import check_is_path
from tuning import folder, protocol, pruners, result, section, trials_file
from tuning.client_sums import sums
from tuning.errors import StudyError
from tuning.kept_trial import FINISHED, digest
from tuning.log_filter import quiet_rounds
from tuning.objective import Objective
from tuning.regret import Regret, bootstrap
from tuning.result import Study, TableBest
from tuning.section import TuningSection
from tuning.space import COHORT_SIZE
from tuning.study import write_best
from tuning.study_plan import unit_of
from tuning.table.course import Course, counted_scores, courses
from tuning.table.play import PLACE, play
from tuning.table.record import PublishedTable, values_of, view_of
from tuning.watched_figure import VALIDATION

log = logging.getLogger("raysim")


def tune_on(
    experiment: Experiment, table: PublishedTable, *, path: Path | None = None, source: str | None = None, **keys: Any
) -> Study:
    """Carry out the study of `[tuning]` on a table: no configuration is trained, and none is tried on test.

    Args:
        path: the study's folder, for `trials.parquet` and `best.toml`; by default `runs/<name>-on-table`: in
            `runs/<name>-tuning` lies the study that made the table, if it was made here.
        source: as for `tune`. keys: of `[tuning]`, such as trials=20.

    Raises:
        ExperimentError: the table is of another experiment or space; names the difference.
        StudyError: the folder is of another study, or no trial finished.
    """
    tuning = section.checked_section({**(experiment.tuning or {}), **keys}, experiment)
    check(experiment, tuning, table)
    for remark in remarks(experiment, tuning, "raysim tune --table"):
        log.warning("%s", remark)
    tuning_keys = told_by(table, experiment, tuning)
    where = path or Path("runs") / f"{experiment.name}-on-table"
    check_is_path(where, "A study's folder (--path, path=)", StudyError)
    folder.check(where, "a table", experiment.name)
    with quiet_rounds():
        trials = play(table, tuning_keys, tuning, experiment.seed, experiment.name)
    space = tuning.parsed_space()
    best = result.rank_trials(trials, space, tuning.objective)
    if not best:
        raise StudyError(result.no_result(trials, space))
    identity = {"tuning": tuning.model_dump(mode="json"), "of": experiment.determining(), "data": table.content}
    searched = result.Searched(experiment.name, tuning.objective, tuning.cost, unit_of(tuning), space)
    study = result.of_trials(searched, trials, best, where)
    whole = courses(table, tuning.objective, by_seed=False)
    chosen = whole[trials[best[0].number].user_attrs[PLACE]].value
    finished = {
        trial.number: tuning_keys[trial.user_attrs[PLACE]]
        for trial in trials
        if trial.user_attrs["outcome"] == FINISHED
    }
    regret = _regret(finished, table, tuning.objective, best[0].number)
    study = replace(study, regret=regret, table=best_of(table, whole, tuning, chosen))
    # Files of two studies of one name that end at the same time would be mixed.
    with folder.opened(where, "a table", experiment.name):
        folder.claim(where, "a table", experiment.name, digest(identity))
        trials_file.write(where, trials, space, tuning.objective, digest(identity))
        write_best(experiment, study, source)
    return study


def check(experiment: Experiment, tuning: TuningSection, table: PublishedTable) -> None:
    """Check that a table has every run that a study of the experiment could ask for.

    Raises:
        ExperimentError: it is of another space, or of another experiment, or lacks the objective's figure.
    """
    own, kept = tuning.parsed_space(), table.space
    sizes = pruners.cohorts(tuning.pruner)
    if own.dimensions.keys() | ({COHORT_SIZE} if sizes else set()) != kept.dimensions.keys():
        raise ExperimentError(
            f"The table is of another space: it varies {', '.join(kept.dimensions)}, and tuning.space "
            f"{', '.join(own.dimensions)}{' with cohort.size, for tuning.pruner.cohorts' if sizes else ''}."
        )
    if own.grid is None:
        raise ExperimentError(
            "A table has listed values only, but tuning.space has numbers without end between two: write "
            "grid = [...] or choices = [...] for each key."
        )
    asked = {key: values_of(own, key) for key in own.dimensions}
    if sizes:
        asked[COHORT_SIZE] = (*sizes, table.experiment.cohort.size)
        if experiment.cohort.size != table.experiment.cohort.size:
            raise ExperimentError(
                f"The table is of another experiment: cohort.size is {table.experiment.cohort.size} there, and "
                f"{experiment.cohort.size} here."
            )
    for key, values in asked.items():
        if absent := [each for each in values if each not in values_of(kept, key)]:
            raise ExperimentError(
                f"The table is of another space: it has {key} = {', '.join(map(str, values_of(kept, key)))}, but the "
                f"study also has {', '.join(map(str, absent))}."
            )
    _check_same(experiment, tuning, table)
    seeds = [each.seed for each in protocol.with_each_seed(table.experiment, tuning)]
    if list(table.seeds) != seeds:
        raise ExperimentError(
            f"The table has runs of the seeds {', '.join(map(str, table.seeds))}, but the study takes "
            f"{', '.join(map(str, seeds))}: set tuning.seeds."
        )
    _check_figure(table, tuning.objective)


def _check_figure(table: PublishedTable, objective: Objective) -> None:
    """Refuse an objective that no row of the table has: every trial would fail, as if its rounds were too few."""
    recorded = {name for runs in table.rows for rows in runs for row in rows[:1] for name in row}
    if recorded and objective.column not in recorded:
        shown = ", ".join(sorted(name for name in recorded if name.startswith(f"{VALIDATION}/")))
        raise ExperimentError(
            f"The table has no {objective.label} ({objective.column}), only {shown}: take another tuning.objective, or "
            f"make the table with this one."
        )


def _check_same(experiment: Experiment, tuning: TuningSection, table: PublishedTable) -> None:
    """Refuse a table whose runs are not those that training would give, whatever their configuration."""
    if experiment.stop is not None:
        raise ExperimentError("A table has every round of every run, but [stop] would end some before: remove it.")
    first = table.configurations[0]
    try:
        own_first = experiment.model_copy(update={"tuning": None}).changed(first)
        has = table.experiment.changed(first)
    except ExperimentError as error:
        raise ExperimentError(f"The table is of another experiment: {error}") from None
    if found := differing(_compared(has), _compared(own_first)):
        raise ExperimentError(f"The table is of another experiment: {'; '.join(found)}.")
    shares, own_shares = protocol.held_out(has), protocol.held_out(own_first)
    if (shares or own_shares) and shares != (own_shares or {"holdout": tuning.holdout}):
        now = _written(own_shares) or f"tuning.holdout = {tuning.holdout:g}"
        raise ExperimentError(
            f"The table is of another experiment: it has {_written(shares) or 'no clients held out'}, and the study "
            f"has {now}."
        )


def _written(shares: Mapping[str, float]) -> str:
    return " and ".join(f"data.{key} = {share:g}" for key, share in shares.items())


def remarks(experiment: Experiment, tuning: TuningSection, command: str) -> Iterator[str]:
    """Yield a sentence for keys that are set, and have no part where the command reads trials from a table."""
    if experiment.trials.count > 1:
        yield f"trials = {experiment.trials.count} has no part in {command}: the table has the runs of its own seeds"
    for key, usual in (("every", 1), ("examples", "all")):
        value = getattr(experiment.evaluation, key)
        if key in experiment.evaluation.model_fields_set and value != usual:
            yield (
                f"evaluation.{key} = {value} has no part in {command}: a table is evaluated after every round, on all "
                f"examples of a client"
            )
    done = {"concurrent": (1, "auto"), "storage": (None,), "final": (0,), "record_test": (False,), "evolution": (None,)}
    unused = [
        f"tuning.{key}"
        for key, as_done in done.items()
        if key in tuning.model_fields_set and getattr(tuning, key) not in as_done
    ]
    if unused:
        yield f"{command} does not use {', '.join(unused)}: nothing is trained, stored, or evaluated on test"


def _compared(experiment: Experiment) -> dict[str, Any]:
    """Return what the numbers of a trial depend on: a table evaluates more often, and divides the clients itself."""
    record: dict[str, Any] = {**experiment.determining(), "rounds": experiment.rounds}
    record.pop("evaluation")
    for key in protocol.HELD_OUT:
        (record.get("data") or {}).pop(key, None)
    return record


def sample_of(table: PublishedTable, experiment: Experiment) -> int | None:
    """Return how many of the table's clients the experiment evaluates; None: all."""
    most = experiment.evaluation.clients
    return None if most == "all" or most >= len(table.clients.names) else most


def told_by(table: PublishedTable, experiment: Experiment, tuning: TuningSection, *draw: int) -> list[Course]:
    """Return the courses that a study sees, which may evaluate a sample of the clients; for `draw` see `seen`.

    Raises:
        ExperimentError: the objective is not defined for a sample.
    """
    most = sample_of(table, experiment)
    if most is not None:
        if not tuning.objective.is_ratio:
            raise ExperimentError(
                "On a table, evaluation.clients is defined for accuracy and loss: take one of them, or all clients."
            )
        table = view_of(table, most, *draw)
    return courses(table, tuning.objective, pruners.looks_at_seeds(tuning.pruner))


def best_of(
    table: PublishedTable, found: list[Course], tuning: TuningSection, chosen: float | None = None
) -> TableBest:
    """Return the best configuration of the table; `chosen`: the value of the study's choice, by all clients."""
    whole = {COHORT_SIZE: table.experiment.cohort.size} if pruners.cohorts(tuning.pruner) else {}
    known = {
        place: course.value
        for place, course in enumerate(found)
        if course.value is not None and whole.items() <= table.configurations[place].items()
    }
    if not known:
        raise StudyError("No configuration of the table has a value: all of them diverged, or it has no rows.")
    best = (max if tuning.objective.is_maximised else min)(known, key=lambda place: known[place])
    return TableBest(table.configurations[best], known[best], chosen)


def _regret(
    finished: Mapping[int, Course], table: PublishedTable, objective: Objective, best: int
) -> tuple[Regret, ...]:
    """Return what `client_scores.regret` returns of a study with training, from the courses of its finished trials."""
    runs_of_each = [course.rows.rows for course in finished.values()]
    if not objective.is_ratio or not runs_of_each:
        return ()
    every = []
    for runs in runs_of_each:
        every.append([sums(counted_scores(table, rows, objective), objective.name) for rows in runs])
    return tuple(bootstrap(every, objective.is_maximised, list(finished).index(best)))
