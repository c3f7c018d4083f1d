"""Runs the trials of an experiment, and combines their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Unpack

import pyarrow as pa

from raysim.api import series
from raysim.api.interrupted import note_of_several, noting
from raysim.api.preflight import ExecutorName, folder_of
from raysim.api.run import Result
from raysim.api.series import Arguments, Member
from raysim.config.ipython import as_printed
from raysim.engine.parts import Parts, takes_parts
from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment import differences
from raysim.experiment.expand import trials_of
from raysim.experiment.experiment import Experiment
from raysim.loggers.logger import Log
from raysim.loggers.open import LoggerName, check
from raysim.run_folder import experiment_record, run_table, series_record, tables
from raysim.run_folder.tables import with_tags
from raysim.storage.remote.folder import local_copy


@dataclass(frozen=True)
class TrialsResult:
    """The results of an experiment's trials.

    trials: the result of each trial, in order; their folders are `path / "trial-0"` and so on, and `raysim.read` leaves
    out those that have not begun. summary: mean and standard deviation of every figure, one row per round
    (raysim/run_folder/tables.py). path: the folder of all trials.
    `print` shows the closing table; a notebook also the learning curve.
    """

    trials: tuple[Result, ...] = field(repr=False)
    summary: pa.Table = field(repr=False)
    path: Path

    def __str__(self) -> str:
        from raysim.report import closing

        experiment = self._experiment()
        return closing.text([("folder", str(self.path))] if experiment is None else self._lines(experiment))

    def _experiment(self) -> Experiment | None:
        """Return the recorded experiment; None if the folder was moved or deleted."""
        try:
            return experiment_record.stored_experiment(self.path)
        except RunFolderError:
            return None

    def _lines(self, experiment: Experiment) -> list[tuple[str, str]]:
        from raysim.report import closing

        return closing.lines_of_trials(experiment, self.summary, self.path, [trial.stopped for trial in self.trials])

    _repr_pretty_ = as_printed

    def _repr_html_(self) -> str | None:
        from raysim.report import notebook

        experiment = self._experiment()
        if experiment is None:
            return None
        lines = self._lines(experiment)
        means, deviations = tables.part(self.summary, tables.MEAN), tables.part(self.summary, tables.DEVIATION)
        return notebook.html(lines, means, experiment.name, deviations)

    @property
    def rounds(self) -> pa.Table:
        """All trials' rounds, with the column `trial` first."""
        return with_tags([({"trial": number}, result.rounds) for number, result in self._numbered()])

    @property
    def clients(self) -> pa.Table:
        """All trials' evaluated clients, with the column `trial` first."""
        return with_tags([({"trial": number}, result.clients) for number, result in self._numbered()])

    def _numbered(self) -> list[tuple[int, Result]]:
        """The trials with their numbers, which are not their places: those that have not begun are left out."""
        return [(series_record.trial_number(result.path), result) for result in self.trials]


@takes_parts
def run_trials(
    experiment: Experiment,
    *,
    executor: ExecutorName | None = None,
    address: str | None = None,
    path: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool | None = None,
    profile: bool = False,
    loggers: Sequence[LoggerName | Log] = (),
    started: Callable[[Member], None] = lambda member: None,
    **parts: Unpack[Parts],
) -> TrialsResult:
    """Run all trials of an experiment in one connection to Ray: side by side, or one after the other.

    They go side by side, one worker each, if there are at least as many trials as workers, or as chunks in a round.
    Each has the same bits as alone. With an address they go one after the other, as runs of the cluster.

    Args:
        experiment: its section `trials` has their number, and the seeds that vary.
        executor, address, progress, profile: as for `run`.
        loggers: as for `run`; named loggers are opened for each trial, in its folder. They receive the rows of one
            trial after the other.
        path: the folder of all trials, by default runs/<name>, or its URI.
        overwrite: replace the folder if it exists.
        resume: continue the folder's trials: finished trials are read, others continued; their number may increase.
        started: called when a trial begins, with one record: its `path` and its `experiment`.
        parts: as for `run`, the same for every trial.

    Raises:
        RaysimError: as `run`; trials that were finished before are kept.
    """
    if experiment.trials.count < 2:
        raise ExperimentError("The experiment asks for one trial: set `trials` to a number, or call raysim.run.")
    if "model" not in experiment.trials.vary and experiment.model is None and parts.get("params") is None:
        raise ExperimentError(
            'trials.vary leaves "model" out, but without [model] each trial draws other initial weights: add [model] '
            'with name = "own", or add "model" there.'
        )
    check(loggers)
    series.check_started(started)
    arguments = Arguments(executor, address, progress, profile, loggers, parts)
    call = "raysim.run_trials(experiment"
    with (
        local_copy(folder_of(experiment, path)) as where,
        noting(partial(note_of_several, where.absolute(), call, parts)),
    ):
        here = where.absolute()
        is_same = partial(check_same, experiment)
        resume = series.goes_on(where, overwrite, resume, is_same)
        members = members_of(experiment, where)
        first = arguments.resolved(members[0])
        if resume:
            series.check_places(members)
            series.check_ends(members)
            series.check_parts(members, first)
        found: dict[Path, Result] = {}

        def results() -> list[Result]:
            return [found[member.path] for member in members if member.path in found]

        def done(member: Member, result: Result) -> None:
            found[member.path] = result

        def show() -> None:
            """Write the results so far, for readers who look at them during the trials."""
            write_summary(experiment, results(), here)

        with (
            arguments.connection(experiment, at_once=False),
            series.opened(where, experiment, overwrite, resume, is_same),
        ):
            series.carry_out(members, first, arguments, resume, started, done, show)
        return together(results(), where)


def together(results: Sequence[Result], path: Path) -> TrialsResult:
    """Combine the trials' results, from the folder `path`."""
    return TrialsResult(tuple(results), _summarised(results), path)


def members_of(experiment: Experiment, path: Path) -> list[Member]:
    """Return the trials of an experiment, each with its folder in `path`."""
    return [
        Member(path / series_record.trial_folder(number), trial) for number, trial in enumerate(trials_of(experiment))
    ]


def _summarised(results: Sequence[Result]) -> pa.Table:
    """Return mean and standard deviation of the trials so far; see raysim/run_folder/tables.py."""
    return tables.summarise([result.rounds for result in results])


def write_summary(experiment: Experiment, results: Sequence[Result], path: Path) -> None:
    """Write the trials' table and picture."""
    table = _summarised(results)
    run_table.write_table(table, path / "summary.parquet")
    # Workers import raysim too: import plotting code only where it is used.
    from raysim.report import curve

    means, deviations = tables.part(table, tables.MEAN), tables.part(table, tables.DEVIATION)
    title = f"{experiment.name}, {len(results)} trials"
    curve.draw(means, path / "curve", title, deviations, experiment.report)


def check_same(experiment: Experiment, path: Path) -> None:
    """Raise RunFolderError unless the folder holds trials of this experiment, and not more than it has."""
    stored = experiment_record.stored_experiment(path)
    if stored.trials.count < 2:
        raise RunFolderError(f"{path} holds one run and no trials: give the trials another folder (--path, path=).")
    found = differences.settings(stored, experiment)
    if stored.trials.vary != experiment.trials.vary:
        found.append(f"trials.vary was {list(stored.trials.vary)}, and is {list(experiment.trials.vary)}")
    if found:
        raise RunFolderError(
            f"{path} holds trials with other settings: {'; '.join(found)}. Give the trials another folder (--path, "
            f"path=), or start afresh (--overwrite, overwrite=True).{experiment_record.other_version(path)}"
        )
    if experiment.trials.count < stored.trials.count:
        raise RunFolderError(
            f"{path} holds {stored.trials.count} trials, so it cannot go on with {experiment.trials.count} only."
        )
