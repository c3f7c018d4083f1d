"""Runs the points of a sweep, and combines their results."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from raysim.api import series, trials
from raysim.api.interrupted import note_of_several, noting
from raysim.api.preflight import ExecutorName, check_one, folder_of
from raysim.api.run import Result
from raysim.api.series import Arguments, Member
from raysim.config.ipython import as_printed
from raysim.engine.parts import Parts, takes_parts
from raysim.errors import RaysimError, RunFolderError
from raysim.experiment import differences, sweep
from raysim.experiment.experiment import Experiment
from raysim.experiment.stopping import StopReason
from raysim.experiment.sweep import ExperimentPoint, Sweep
from raysim.loggers.logger import Log
from raysim.loggers.open import LoggerName, check
from raysim.run_folder import beginning, experiment_record, run_table, series_record
from raysim.run_folder.series_record import stored_sweep
from raysim.run_folder.tables import with_tags
from raysim.storage.remote.folder import local_copy


@dataclass(frozen=True)
class SweepPoint:
    """The result of one point of a sweep.

    values: of the swept keys. rounds, clients: as in `Result`, or in `TrialsResult` if the experiment has trials.
    path: the folder of its run or trials. stopped: for its run, or each of its trials, why `[stop]` ended it before its
    last round; None: it did not.
    """

    values: Mapping[str, Any]
    rounds: pa.Table = field(repr=False)
    clients: pa.Table = field(repr=False)
    path: Path
    stopped: tuple[StopReason | None, ...] = ()


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep: its points in order, the last key's values changing fastest, and the sweep's folder.

    `print` shows the closing table; a notebook also the picture.
    """

    points: tuple[SweepPoint, ...] = field(repr=False)
    path: Path

    def __str__(self) -> str:
        from raysim.report import closing

        return closing.text(self._lines() or [("folder", str(self.path))])

    def _lines(self) -> list[tuple[str, str]] | None:
        """Return the closing table's rows; None if the folder was moved or deleted."""
        from raysim.report import closing

        try:
            stored = stored_sweep(self.path)
        except RaysimError:
            stored = None
        if stored is None:
            return None
        points = [(point.path.name, point.rounds, point.stopped) for point in self.points]
        return closing.lines_of_sweep(stored[0], points, self.path, len(sweep.points(*stored)), stored[1])

    _repr_pretty_ = as_printed

    def _repr_html_(self) -> str | None:
        from raysim.report import notebook

        lines = self._lines()
        return None if lines is None else notebook.html_of_folder(lines, self.path)

    @property
    def rounds(self) -> pa.Table:
        """All points' rounds, with a column for each swept key first."""
        return with_tags([(point.values, point.rounds) for point in self.points])

    @property
    def clients(self) -> pa.Table:
        """All points' evaluated clients, with a column for each swept key first."""
        return with_tags([(point.values, point.clients) for point in self.points])


@takes_parts
def run_sweep(
    experiment: Experiment,
    values: Mapping[str, Iterable[Any]],
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
) -> SweepResult:
    """Run an experiment for every combination of values, in one connection to Ray.

    Its runs go side by side, or one after the other, as in `run_trials`.

    Args:
        experiment: if it has several trials, every point has them.
        values: dotted key -> its values, such as {"cohort.size": [10, 50, 100]}.
        executor, address, progress, profile: as for `run`.
        loggers: as for `run_trials`.
        path: the sweep's folder, by default runs/<name>, or its URI.
        overwrite: replace the folder if it exists.
        resume: continue the folder's sweep: finished points are read, others continued, and a key may have more values.
        started: called when a run begins, with one record: its `path` and its `experiment`.
        parts: as for `run`, the same for every point.

    Raises:
        RaysimError: as `run`. Every point is checked before the first one runs; finished ones are kept.
    """
    check(loggers)
    series.check_started(started)
    values = sweep.plain(values)
    points = sweep.points(experiment, values)
    arguments = Arguments(executor, address, progress, profile, loggers, parts)
    call = "raysim.run_sweep(experiment, values"
    with (
        local_copy(folder_of(experiment, path)) as where,
        noting(partial(note_of_several, where.absolute(), call, parts)),
    ):
        here = where.absolute()
        is_same = partial(_check_same, experiment, values)
        write = partial(series_record.write_sweep, where, experiment, values)
        resume = series.goes_on(where, overwrite, resume, is_same)
        members = {point.folder: _members(point, where) for point in points}
        first, *_ = [arguments.resolved(of_point[0]) for of_point in members.values()]
        every = [member for of_point in members.values() for member in of_point]
        if resume:
            _check_trials(points, where)
            series.check_places(every, values)
            series.check_ends(every)
            series.check_parts(every, first)
        point_of = {member.path: point for point in points for member in members[point.folder]}
        results: dict[Path, Result] = {}
        changed: deque[ExperimentPoint] = deque()

        def done(member: Member, result: Result) -> None:
            # Models do not stay in memory: each is in its run's folder.
            results[member.path] = dataclasses.replace(result, params={})
            changed.append(point_of[member.path])

        def show() -> None:
            """Write the results so far, for readers who look at them during the sweep."""
            for point in {changed.popleft().folder: point for point in tuple(changed)}.values():
                if point.experiment.trials.count > 1:
                    of_point = [results[m.path] for m in members[point.folder] if m.path in results]
                    trials.write_summary(point.experiment, of_point, here / point.folder)
            _put_together(dataclasses.replace(together(points, results, where), path=here), experiment)

        with (
            arguments.connection(experiment, at_once=False),
            series.opened(where, experiment, overwrite, resume, is_same, write),
        ):
            for point in points:
                if point.experiment.trials.count > 1:
                    _make_folder_of_trials(point, where / point.folder, resume)
            series.carry_out(every, first, arguments, resume, started, done, show)
        return together(points, results, where)


def together(points: Sequence[ExperimentPoint], results: Mapping[Path, Result], where: Path) -> SweepResult:
    """Return the points all of whose runs have a result, in the sweep's folder `where`; `results`: by their folders."""
    members = {point.folder: _members(point, where) for point in points}
    whole = [point for point in points if all(member.path in results for member in members[point.folder])]
    return SweepResult(tuple(_finished(p, members[p.folder], results, where) for p in whole), where)


def members(experiment: Experiment, values: Sweep, where: Path) -> list[Member]:
    """Return the runs of all points of a sweep, each with its folder in `where`."""
    return [member for point in sweep.points(experiment, values) for member in _members(point, where)]


def _members(point: ExperimentPoint, where: Path) -> list[Member]:
    path = where / point.folder
    if point.experiment.trials.count > 1:
        return trials.members_of(point.experiment, path)
    return [Member(path, point.experiment)]


def _make_folder_of_trials(point: ExperimentPoint, path: Path, resume: bool) -> None:
    is_same = partial(trials.check_same, point.experiment)
    resume = series.goes_on(path, False, resume, is_same)
    with series.opened(path, point.experiment, False, resume, is_same):
        # The sweep's lock keeps others away; each trial locks its own folder.
        pass


def _finished(
    point: ExperimentPoint, members: Sequence[Member], results: Mapping[Path, Result], where: Path
) -> SweepPoint:
    path, of_point = where / point.folder, [results[member.path] for member in members]
    whole = trials.together(of_point, path) if point.experiment.trials.count > 1 else of_point[0]
    return SweepPoint(point.values, whole.rounds, whole.clients, path, tuple(result.stopped for result in of_point))


def _check_same(experiment: Experiment, values: Sweep, path: Path) -> None:
    """Refuse a folder unless it holds a sweep of this experiment over these keys, with no further values.

    Its points must keep their folders: they would be computed once more, beside the earlier ones.
    """
    stored = stored_sweep(path)
    if stored is None:
        raise RunFolderError(f"{path} holds no sweep: give the sweep another folder (--path, path=).")
    before, old = stored
    found = differences.settings(before, experiment)
    if list(old) != list(values):
        found.append(f"the swept keys were {', '.join(old)}, and are {', '.join(values)}")
    else:
        lost = [(key, value) for key in old for value in old[key] if value not in values[key]]
        found += [f"{key} had the value {value!r}, and has not" for key, value in lost]
    if found:
        raise RunFolderError(
            f"{path} holds another sweep: {'; '.join(found)}. Give the sweep another folder (--path, path=), or start "
            f"afresh (--overwrite, overwrite=True).{experiment_record.other_version(path)}"
        )
    if others := sweep.renamed(old, values):
        raise RunFolderError(
            f"{path} holds points whose folders would have other names with these values: {'; '.join(others)}. Write "
            f"the earlier values as they were and first; where a new one has the same word, give the sweep another "
            f"folder (--path, path=), or start afresh (--overwrite, overwrite=True)."
        )


def _check_trials(points: Iterable[ExperimentPoint], where: Path) -> None:
    """Refuse a folder of a point that holds one run where the point has trials, or the other way; or too few trials."""
    for point in points:
        path = where / point.folder
        if beginning.is_unbegun(path):
            continue
        if point.experiment.trials.count > 1:
            trials.check_same(point.experiment, path)
        else:
            check_one(experiment_record.stored_experiment(path), path)


def _put_together(result: SweepResult, experiment: Experiment) -> None:
    if not result.points:
        return
    run_table.write_table(result.rounds, result.path / "sweep.parquet")
    # Workers import raysim too: import plotting code only where it is used.
    from raysim.report import sweep_picture

    points = [(point.values, point.rounds) for point in result.points]
    sweep_picture.draw(points, result.path / "sweep", experiment.name, experiment.report)
