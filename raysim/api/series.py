"""Carries out several runs in one folder and one connection to Ray. Trials and sweeps are series.

The runs go side by side, one worker each (many.py), if that keeps at least as many workers busy as the chunks of one
run's rounds. Otherwise they go one after the other, each with all workers. The bits are the same in both cases.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from raysim.api import watched_code, watched_values
from raysim.api.executors import begins
from raysim.api.many import Report, Runs
from raysim.api.preflight import ExecutorName, check_alike, check_one_way, with_executor
from raysim.api.run import Result, run
from raysim.config.call_advice import check_takes
from raysim.config.counted import counted
from raysim.engine.outlook import workers_here
from raysim.engine.parts import Parts
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds.terminable import terminable
from raysim.errors import RunFolderError
from raysim.experiment import stopping
from raysim.experiment.experiment import Experiment
from raysim.loggers.logger import Log
from raysim.loggers.open import LoggerName, Loggers
from raysim.run_folder import beginning, client_table, experiment_record, files, going_on, round_table, stop_record
from raysim.run_folder.series_record import SeriesPlace, check_place
from raysim.run_folder.writer import RunFolder
from raysim.storage import atomic, disk, lock
from raysim.storage.inside import check_links
from raysim.storage.remote.folder import put_meanwhile

BETWEEN_RUNS = "between the beginnings of two runs"

AT_A_TIME = 64
"""Number of runs that are started at a time, ..."""

MODELS_BYTES = 2**30
"""... or fewer, until their models have this size together; but at least one for each worker."""


class Member(NamedTuple):
    """One run of a series, and its folder."""

    path: Path
    experiment: Experiment


@dataclass(frozen=True)
class Arguments:
    """The arguments of `raysim.run` that all runs of a series share."""

    executor: ExecutorName | None = None
    address: str | None = None
    progress: bool | None = None
    profile: bool = False
    loggers: Sequence[LoggerName | Log] = ()
    parts: Parts = field(default_factory=Parts)

    def resolved(self, member: Member) -> Plan:
        """Resolve a run; raises its errors before anything is written to the disk."""
        return resolve(with_executor(member.experiment, self.executor), **self.parts)

    def connection(self, experiment: Experiment, at_once: bool = True) -> AbstractContextManager[object]:
        """Connect to Ray, once for all members, if they use it; not `at_once`: if they use it from the start."""
        place = begins(with_executor(experiment, self.executor).engine, self.executor, self.address)
        if place == "here" or (place == "here at first" and not at_once):
            return nullcontext()
        from raysim.engine.on_ray.cluster.cluster import connected

        return connected(self.address)


def check_started(started: Callable[[Member], None]) -> None:
    """Refuse what cannot be called with a member, before the first run begins; see `run_sweep`.

    Raises:
        ExperimentError: it is no function of one argument.
    """
    check_takes("started= must be a function of one argument, with .path and .experiment of the run", started, None)


def goes_on(path: Path, overwrite: bool, resume: bool, check_same: Callable[[Path], None]) -> bool:
    """Whether the series continues the one in the folder; nothing is written.

    Raises:
        RunFolderError: the folder cannot be created, a link in it leads out, or `check_same` refuses its content.
    """
    check_one_way(resume, overwrite)
    if resume and not beginning.is_unbegun(path):
        check_links(path, RunFolderError)
        check_same(path)
        return True
    RunFolder.check_free(path, overwrite)
    return False


def check_places(members: Iterable[Member], swept: Iterable[str] = ()) -> None:
    """Raise RunFolderError if a run that has begun is another one than its place in the series says.

    swept: the keys in which the members of a sweep differ.
    """
    for path, experiment in members:
        if (path / files.RECORD).exists():
            check_place(path, SeriesPlace(experiment, tuple(swept)))


def check_ends(members: Iterable[Member]) -> None:
    """Raise RunFolderError if a run that has begun cannot go on as the series says: its record comes before the run."""
    for path, experiment in members:
        if (path / files.RECORD).exists():
            going_on.begun(path, experiment)


def check_parts(members: Iterable[Member], first: Plan) -> None:
    """Raise RunFolderError if runs of the series would begin with other parts than those that are there."""
    check_alike(first.passed, [member.path for member in members])


@contextmanager
def opened(
    path: Path,
    experiment: Experiment,
    overwrite: bool,
    resume: bool,
    check_same: Callable[[Path], None],
    write: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Make the series' folder, or go on in it, and lock it during the block; one to begin afresh in is emptied.

    Since `goes_on` has looked, another process may have begun there, so the folder is looked at again under the lock.

    Args:
        path: the folder.
        experiment: the series'.
        overwrite: allow to replace what is there.
        resume: what `goes_on` has returned.
        check_same: as for `goes_on`.
        write: called before the record of the experiment is written.

    Raises:
        RunFolderError: another process writes there, or has begun a run there.
    """
    with lock.locked(path):
        if resume:
            check_same(path)
        else:
            RunFolder.check_free(path, overwrite, is_locked=True)
            with disk.writing(path):
                beginning.clear(path)
        atomic.sweep(path, older_than_s=0)
        write()
        experiment_record.write_experiment(path, experiment, "")
        yield


def carry_out(
    members: Sequence[Member],
    first: Plan,
    arguments: Arguments,
    resume: bool,
    started: Callable[[Member], None],
    done: Callable[[Member, Result], None],
    show: Callable[[], None],
) -> None:
    """Run the members, also where a logger, or another part of the script, changes the working folder.

    Args:
        members: the runs.
        first: the first one, resolved; the others should have about the same cost.
        arguments: of all runs.
        resume: continue the existing folders.
        started, done: called when a run begins, and with its result.
        show: writes the results so far; called after `done`, also from another thread, and once after the last run.
    """
    given = {member.path.absolute(): member for member in members}
    members = [member._replace(path=path) for path, member in given.items()]

    values = watched_values.Watch(arguments.parts, BETWEEN_RUNS)
    check_code = watched_code.watch(first, arguments.parts, BETWEEN_RUNS)
    first_path = members[0].path

    def begins_given(member: Member) -> None:
        if member.path == first_path:
            started(given[member.path])
            return
        with values.around():
            started(given[member.path])
        check_code()

    def is_done(member: Member, result: Result) -> None:
        done(named := given[member.path], replace(result, path=named.path))

    left = sum(not (resume and _is_recorded(member)) for member in members)
    if arguments.address is None and _same_workers(members) and left >= busy_workers(first):
        _side_by_side(members, first, arguments, resume, begins_given, is_done, show)
        return
    with arguments.connection(members[0].experiment):
        for member in members:
            begins_given(member)
            result = run(
                member.experiment,
                executor=arguments.executor,
                address=arguments.address,
                path=member.path,
                resume=resume,
                progress=arguments.progress,
                profile=arguments.profile,
                loggers=arguments.loggers,
                **arguments.parts,
            )
            is_done(member, result)
            show()


def _is_recorded(member: Member) -> bool:
    if not member.path.exists():
        return False
    rounds = round_table.read_rounds(member.path)
    return stopping.is_over(member.experiment, rounds.num_rows, stop_record.stop_reason(member.experiment, rounds))


def _same_workers(members: Sequence[Member]) -> bool:
    """Whether all members have the same workers; a sweep over engine.workers has not."""
    engines = [member.experiment.engine for member in members]
    return len({tuple(getattr(engine, key) for key in engine.PLACEMENT) for engine in engines}) == 1


def busy_workers(plan: Plan) -> int:
    """Return the number of workers that the first round of a single run keeps busy."""
    engine = plan.experiment.engine
    where = begins(engine, None, None)
    if where == "here":
        return 1
    chunks, _ = plan.chunks(plan.cohorts().first(), 0)
    if where == "here at first":
        return min(workers_here(engine.cpus_per_worker), len(chunks))
    from raysim.engine.on_ray.cluster.cluster import place

    return min(place(engine).workers, len(chunks))


def _side_by_side(
    members: Sequence[Member],
    first: Plan,
    arguments: Arguments,
    resume: bool,
    started: Callable[[Member], None],
    done: Callable[[Member, Result], None],
    show: Callable[[], None],
) -> None:
    waiting, under_way = deque(members), dict[int, Member]()
    with ExitStack() as stack:
        stack.enter_context(terminable())
        stack.enter_context(put_meanwhile(members[0].path))
        pictures = stack.enter_context(_Pictures(show))
        stack.callback(lambda: pictures.unfinished(under_way.values()))
        progress = stack.enter_context(_Progress(arguments.progress, members))
        logs = stack.enter_context(_InTurn(members, arguments.loggers))
        how: Any = {"executor": arguments.executor, "address": arguments.address, "together": "exact"}
        runs = stack.enter_context(Runs(members[0].experiment, **how, **arguments.parts))
        progress.started(runs.workers)
        runs.expect(sum(member.experiment.rounds for member in members))
        params = first.initial.params
        models = MODELS_BYTES // (params.numel() * params.element_size())
        at_a_time = max(runs.workers, min(AT_A_TIME, models))
        while waiting or under_way:
            # Runs that begin together may be trained together.
            if len(under_way) <= at_a_time // 2:
                batch = [waiting.popleft() for _ in range(min(len(waiting), at_a_time - len(under_way)))]
                for member in batch:
                    started(member)
                asked = [(member.experiment, member.path) for member in batch]
                numbers = runs.start(asked, resume=resume, profile=arguments.profile)
                under_way.update(zip(numbers, batch, strict=True))
            for report in runs.reports():
                member = under_way[report.run]
                progress.receive(report)
                if report.error is not None:
                    raise report.error
                logs.receive(member, () if report.earlier else report.rows, report.finished)
                if report.finished:
                    del under_way[report.run]
                    done(member, _result(report))
                    pictures.draw(member, anew=not report.earlier)
                    if waiting:
                        break


def _result(report: Report) -> Result:
    assert report.params is not None
    rounds, clients = round_table.read_rounds(report.path), client_table.read_clients(report.path)
    return Result(report.params, rounds, clients, report.path, report.stopped)


class _Progress(AbstractContextManager["_Progress"]):
    """Shows the progress of a series as that of one run, with the rounds of all runs."""

    def __init__(self, progress: bool | None, members: Sequence[Member]) -> None:
        from raysim.report.progress import Silent, Terminal

        total = sum(member.experiment.rounds for member in members)
        self._show = Terminal.where_wanted(progress, total) or Silent()
        self._rounds = itertools.count()

    def started(self, workers: int) -> None:
        """Show that the workers have started."""
        self._show.started([f"{counted(workers, 'run')} at a time, one on each worker"])

    def receive(self, report: Report) -> None:
        """Show rows of a run."""
        for row, place in zip(report.rows, self._rounds, strict=False):
            (self._show.joined if report.earlier else self._show.row)({**row, "round": place})

    def __enter__(self) -> Self:
        self._show.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._show.__exit__(*error)


class _Pictures(AbstractContextManager["_Pictures"]):
    """Draws the pictures of ended runs in a thread; calls `show` when no picture is waiting."""

    def __init__(self, show: Callable[[], None]) -> None:
        self._show, self._thread = show, ThreadPoolExecutor(1, thread_name_prefix="pictures")
        self._asked: list[Future[None]] = []
        self._num_asked = 0

    def draw(self, member: Member, anew: bool) -> None:
        """Draw a finished run; without `anew` it has its picture already, unless a process was killed before."""
        self._num_asked += 1
        self._asked.append(self._thread.submit(self._draw, member, anew, self._num_asked))

    def _draw(self, member: Member, anew: bool, place: int) -> None:
        # Workers import raysim too: import plotting code only where it is used.
        from raysim.report import curve

        if anew or not curve.is_of_all_rounds(*member):
            curve.of_run(*member)
        if place == self._num_asked:
            self._show()

    def unfinished(self, members: Iterable[Member]) -> None:
        """Draw runs that an error or an interrupt has ended."""
        from raysim.report import curve

        for member in members:
            curve.of_run(*member)

    def __exit__(self, *error: Any) -> None:
        self._thread.shutdown()
        for drawn in self._asked:
            drawn.result()


class _InTurn(AbstractContextManager["_InTurn"]):
    """Passes rows to the loggers of one run after the other, in the order of the runs.

    Some services accept one run at a time, and a row does not name its run.
    """

    def __init__(self, members: Iterable[Member], loggers: Sequence[LoggerName | Log]) -> None:
        self._turns = deque((member, Loggers(loggers, *member)) for member in members)
        self._rows: dict[Path, list[Mapping[str, Any]]] = {}
        self._finished: set[Path] = set()

    def receive(self, member: Member, rows: Sequence[Mapping[str, Any]], finished: bool) -> None:
        """Store rows of a run, and pass them on when it is the run's turn."""
        self._rows.setdefault(member.path, []).extend(rows)
        if finished:
            self._finished.add(member.path)
        while self._turns:
            turn, logs = self._turns[0]
            self._hand_on(turn, logs)
            if turn.path not in self._finished:
                return
            logs.no_more()
            logs.__exit__(None, None, None)
            self._turns.popleft()

    def _hand_on(self, member: Member, logs: Loggers) -> None:
        for row in self._rows.pop(member.path, ()):
            logs.row(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member, logs in self._turns:
            self._hand_on(member, logs)
            logs.__exit__(kind, error, trace)
