"""Carries out several runs on one set of workers, such as the trials of a study, or of an experiment.

Runs advance in segments (engine/many/segment.py): from one evaluation to the next, in one worker each, so no run waits
for another run's round. Runs that differ only in learning rates or server go in lockstep
(engine/worker/lockstep_rule.py): their clients are trained in one stack. A run's folder has the files that
`raysim.run` writes, except the picture.
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Unpack

from torch import Tensor

from raysim.api import watched_code
from raysim.api.closed_at_end import closed_at_end
from raysim.api.of_one_process import OfOneProcess, left_to_parent
from raysim.api.preflight import ExecutorName, is_whole, opening_of, with_executor
from raysim.api.run_records import OpenRun, RunRecords
from raysim.api.shared_plans import SharedPlans
from raysim.api.shared_workers import SharedWorkers
from raysim.api.state_to_go_on import state_to_go_on
from raysim.api.watched_values import Watch
from raysim.config.flag import check_flag
from raysim.data import lent_rows
from raysim.engine.many.groups import Group, group_runs
from raysim.engine.many.segment import Advanced, advanced_of, job_of
from raysim.engine.parts import Parts, takes_parts
from raysim.engine.plan.beginnings import Beginnings
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.auto_trainer import with_kept_trainer
from raysim.engine.rounds.opening import Opening, open_folder, owner_of
from raysim.engine.worker.lockstep_rule import lockstep_key
from raysim.errors import ExperimentError, RaysimError, RunFolderError
from raysim.experiment import privacy, stopping
from raysim.experiment.experiment import Experiment
from raysim.experiment.stopping import Seen, StopReason
from raysim.run_folder import experiment_record, kept_checkpoints, round_table
from raysim.run_folder.branch import branch
from raysim.run_folder.writer import RunFolder
from raysim.storage.remote.folder import path_here
from raysim.storage.remote.uri import check_is_path

_MEANWHILE = "after the first run had begun"


@dataclass(frozen=True)
class Report:
    """News of a run.

    run: its number. path: its folder. rows: the rounds since the last report; the first report of a resumed run has its
    recorded rounds too. finished: its end is recorded. error: the run failed with this error. earlier: the rows
    were recorded before. params: the final model, name -> tensor, once the run is finished. stopped: why it has stopped
    before its last round, once it is finished.
    """

    run: int
    path: Path
    rows: tuple[Mapping[str, Any], ...]
    finished: bool = False
    error: RaysimError | None = None
    earlier: bool = False
    params: dict[str, Tensor] | None = field(default=None, repr=False)
    stopped: StopReason | None = None


class Runs:
    """Several runs on one set of workers; a context manager that at its end checkpoints the runs and ends the workers.

    A process that is forked meanwhile cannot go on with them, and its leaving the block ends nothing.

    Args:
        experiment: its engine section sets number and size of the workers; runs may differ in all other keys.
        executor: "local" runs in this process, without Ray; "ray" runs on Ray from the start, also where
            `engine.workers = "auto"` would begin in this process.
        address: None uses this machine; "auto" joins the running Ray cluster.
        together: train the clients of runs in lockstep in one stack. The numbers are those of each run alone: to the
            last bit with plain SGD, else to rounding. "exact": only if the bits are the same.
        parts: as for `raysim.run`, the same for every run.

    Raises:
        ResourceError: Ray does not have the requested resources.
    """

    @takes_parts
    def __init__(
        self,
        experiment: Experiment,
        *,
        executor: ExecutorName | None = None,
        address: str | None = None,
        together: bool | Literal["exact"] = True,
        **parts: Unpack[Parts],
    ) -> None:
        if together != "exact":
            check_flag("together", together)
        engine = with_executor(experiment, executor).engine
        self._resolved, self._together, self._process = SharedPlans(engine, parts), together, os.getpid()
        self._parts, self._values = parts, Watch(parts, _MEANWHILE)
        self._check_code: Callable[[], None] | None = None
        self._beginnings = Beginnings()
        self._runs: dict[int, OpenRun] = {}
        self._sent: dict[int, Callable[[], Plan]] = {}
        self._number = 0
        self._new: list[int] = []
        self._groups: deque[Group] = deque()
        self._under_way: dict[int, Group] = {}
        """By the ticket of their segment."""
        self._said: deque[Report] = deque()
        self._expected = 0
        with ExitStack() as stack:
            self._records = stack.enter_context(RunRecords())
            held = stack.enter_context(ExitStack())
            self._workers = SharedWorkers(engine, executor, address, held, self._plans)
            stack.callback(self._checkpoint_all)
            self._opened = stack.pop_all()
        closed_at_end(self.close)

    @property
    def workers(self) -> int:
        """Number of segments that are carried out at a time, once the workers have started."""
        self._check_process()
        return self._workers.number

    def expect(self, rounds: int) -> None:
        """Say how many rounds are to come, also of runs that are not added yet: by it workers are worth their start."""
        self._check_process()
        self._expected = rounds

    def start(
        self,
        runs: Sequence[tuple[Experiment, str | Path]],
        *,
        resume: bool = False,
        overwrite: bool = False,
        profile: bool = False,
    ) -> list[int]:
        """Add runs. Runs that are added before the next call for a report may be trained together.

        Args:
            runs: experiments of one trial, each with its folder.
            resume: continue a folder's run if it exists.
            overwrite: replace a folder that exists.
            profile: write each run's timeline.json; see `raysim.run`.

        Returns:
            Their numbers, which reports use.

        Raises:
            RaysimError: as `raysim.run` before its first round; then none of them was added.
        """
        for name, value in {"resume": resume, "overwrite": overwrite, "profile": profile}.items():
            check_flag(name, value)
        self._check_process()
        with self._working():
            return self._start(runs, resume, overwrite, profile)

    def _start(
        self, runs: Sequence[tuple[Experiment, str | Path]], resume: bool, overwrite: bool, profile: bool
    ) -> list[int]:
        for _, path in runs:
            check_is_path(path, "The folder of a run that shares workers")
        # The script, or a part of it, may change the working folder.
        folders = [path_here(path).absolute() for _, path in runs]
        if twice := [path for path, count in Counter(each.resolve() for each in folders).items() if count > 1]:
            raise RunFolderError(f"Every run needs a folder of its own, but several were given {twice[0]}.")
        checked = []
        for (experiment, path), folder in zip(runs, folders, strict=True):
            plan = with_kept_trainer(self._resolved.plan(experiment, folder), folder if resume else None)
            checked.append((plan, Path(path), opening_of(plan, folder, resume, overwrite, profile)))
        if checked and self._check_code is None:
            self._check_code = watched_code.watch(checked[0][0], self._parts, _MEANWHILE)
        for plan, path, opening in checked:
            if not is_whole(plan, opening):
                self._beginnings.log(plan, str(path))
        return [self._add(run) for run in [self._open(*each) for each in checked]]

    def check(self, experiment: Experiment) -> None:
        """Raise what `start` raises of an experiment that no folder can change; nothing is written."""
        self._check_process()
        with self._working():
            with_kept_trainer(self._resolved.plan(experiment, Path()), None)

    def branch(self, experiment: Experiment, path: str | Path, origin: str | Path) -> None:
        """Make the folder of a run that goes on from another run's newest state; `start` with `resume` carries it out.

        It has the other one's rows, and may have other values of keys that leave the state as it is, such as rates. It
        clips at its own level if that is fixed, and at the other one's newest level if both adapt it.

        Raises:
            ExperimentError: clients keep states, which lie in the other one's folder; or the rounds of both cannot be
                counted together by `server.privacy`; or the state is of another module or server optimizer, or lacks
                what the run needs; or keys differ that only say how a run begins, such as `server.clip.initial`.
            RunFolderError: there is a folder at `path`, or none with a checkpoint at `origin`.
        """
        self._check_process()
        for folder in (path, origin):
            check_is_path(folder, "The folder of a run that goes on from another, or of that one,")
        self.check_branch(experiment)
        path, origin = (path_here(folder).absolute() for folder in (path, origin))
        with self._working():
            plan = with_kept_trainer(self._resolved.plan(experiment, path), origin)
            branch(
                origin,
                path,
                plan.experiment,
                plan.fingerprint,
                plan.choice.record,
                state_to_go_on(plan, origin),
                plan.passed,
            )

    def check_branch(self, experiment: Experiment, keys: Iterable[str] = ()) -> None:
        """Raise ExperimentError if no run can go on from another run of the experiment with other values of the keys.

        Either clients keep states, or `server.privacy` could not count the rounds of both together.
        """
        with self._working():
            keeps_states = self._resolved.plan(experiment, Path()).states is not None
        if keeps_states:
            raise ExperimentError(
                "No run can go on from another one's state with other settings here: clients keep states "
                "(client.correction, client.personalisation, client.transform or error_feedback), which belong to the "
                "other one's folder. Take a method whose clients keep none."
            )
        counted = [key for key in keys if key.startswith(privacy.COUNTED)]
        if experiment.server.privacy is not None and counted:
            raise ExperimentError(
                f"No run can go on from another one's state with another {' or '.join(counted)}: server.privacy counts "
                f"all rounds of a run alike. Leave it as it was."
            )

    def reports(self) -> Iterator[Report]:
        """Wait for news of any run, until all runs have ended. Between reports a script may add and stop runs.

        Raises:
            ResourceError: this process was forked from the one that made these runs.
        """
        self._check_process()
        return OfOneProcess(self._reports(), "raysim.Runs")

    def _reports(self) -> Generator[Report]:
        self._script_ended()
        while True:
            while self._said:
                # What ends the loop early, `start` or another loop notices.
                self._values.begins()
                yield self._said.popleft()
                self._script_ended()
            self._submit_segments()
            if not self._under_way:
                self._values.begins()
                return
            self._take_segment(self._workers.executor.first(self._under_way))

    def stop(self, run: int) -> None:
        """End a run after its present segment; it is checkpointed, and has no further report."""
        self._check_process()
        self._said = deque(said for said in self._said if said.run != run)
        if run in self._runs:
            self._runs[run].dropped = True
            # A waiting segment starts without the run; a running one is handled when it ends.
            self._new = [number for number in self._new if number != run]
            self._groups = deque(left for group in self._groups if (left := self._still_wanted(group)))
            if not any(run in group for group in self._under_way.values()):
                self._end(run)

    def close(self) -> None:
        """End the workers; runs under way are checkpointed, and can be resumed. In a forked process nothing ends."""
        if os.getpid() == self._process:
            self._opened.close()
            dataset = self._parts.get("dataset")
            lent_rows.warn({} if dataset is None else dataset.splits)

    def __enter__(self) -> Runs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise left_to_parent("raysim.Runs")

    def _script_ended(self) -> None:
        """Warn if the script has changed what a part reads, or its code, since raysim gave it the word."""
        self._values.ended()
        if self._check_code is not None:
            self._check_code()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Put around what a method does: the parts that it calls may change their own values."""
        self._script_ended()
        try:
            yield
        finally:
            if self._check_code is not None:
                self._values.begins()

    def _plans(self) -> Iterator[Plan]:
        return (run.plan for run in self._runs.values())

    def _open(self, plan: Plan, path: Path, opening: Opening) -> OpenRun:
        """Create or open a run's folder."""
        if plan.states is not None:
            plan = replace(plan, states_of=owner_of(plan, opening))
        held = ExitStack()
        if is_whole(plan, opening):
            owner = experiment_record.stored_owner(opening.path)
            folder = RunFolder(opening.path, owner, plan.experiment.checkpoint.keep)
            state, seen = kept_checkpoints.newest_state(opening.path, owner), Seen(stopped=opening.stopped)
        else:
            folder, state = held.enter_context(open_folder(plan, opening))
            seen = stopping.after_all(plan.experiment, folder.rows)
        state = state or plan.initial_state()
        key = lockstep_key(plan, exact=self._together == "exact") if self._together else None
        return OpenRun(plan, path, held, folder, state, state, None if key is None else (key, state.round), seen)

    def _add(self, run: OpenRun) -> int:
        number, self._number = self._number, self._number + 1
        self._expected -= run.state.round
        path = run.folder.path
        if rows := tuple(round_table.read_rounds(path).to_pylist()):
            self._said.append(replace(_report(number, run, rows), earlier=True))
        if run.is_over:
            run.held.close()
        else:
            self._runs[number] = run
            self._new.append(number)
            self._sent[number] = self._workers.executor.send(run.plan)
        return number

    def _still_wanted(self, group: Group) -> Group:
        return tuple(number for number in group if number in self._runs and not self._runs[number].dropped)

    def _submit_segments(self) -> None:
        left = sum(run.plan.experiment.rounds - run.state.round for run in self._runs.values())
        # In this process no segment is under way between two others.
        if self._workers.move(max(left, self._expected)):
            self._sent = {number: self._workers.executor.send(run.plan) for number, run in self._runs.items()}
        self._groups.extend(group_runs([(number, self._runs[number].key) for number in self._new], self.workers))
        self._new = []
        while self._groups and len(self._under_way) < max(1, self._workers.executor.workers):
            group = self._groups.popleft()
            for number in group:
                if self._runs[number].plan.states is not None:
                    # Their state files stay while checkpoints name them.
                    self._records.wait(number)
            plans = {number: self._sent[number] for number in group}
            seen = {number: self._runs[number].seen for number in group}
            job = job_of(plans, [self._runs[number].state for number in group], frozenset(self._runs), seen)
            self._under_way[self._workers.executor.submit(job)] = group

    def _take_segment(self, ticket: int) -> None:
        group = self._under_way.pop(ticket)
        go_on: list[Group] = [group]
        start_s = time.monotonic()
        try:
            every = advanced_of(self._workers.executor.result(ticket))
        except RaysimError as error:
            if len(group) == 1:
                self._fail(group[0], error)
            # Each run goes alone now, which shows which one failed.
            go_on = [(number,) for number in group]
        else:
            rounds = sum(len(advanced.rounds) for advanced in every)
            self._workers.worked(time.monotonic() - start_s, rounds)
            self._expected -= rounds
            for number, advanced in zip(group, every, strict=True):
                self._record_advance(number, advanced)
        for number in group:
            if number in self._runs and self._runs[number].dropped:
                self._end(number)
        self._groups.extend(left for each in go_on if (left := self._still_wanted(each)))

    def _record_advance(self, number: int, advanced: Advanced) -> None:
        run = self._runs[number]
        run.state, run.seen = advanced.state, advanced.seen
        self._records.write(number, run, advanced)
        if run.is_over:
            # The receiver of the report may read the folder.
            self._end(number)
        if not run.dropped:
            self._said.append(_report(number, run, tuple(told.row for told in advanced.rounds)))

    def _fail(self, number: int, error: RaysimError) -> None:
        run = self._runs[number]
        self._end(number)
        if not run.dropped:
            self._said.append(Report(number, run.path, (), error=error))

    def _end(self, number: int) -> None:
        """Checkpoint a run and release it."""
        self._records.wait(number)
        del self._sent[number]
        self._runs.pop(number).leave()

    def _checkpoint_all(self) -> None:
        """Checkpoint every run, even if another fails; raises errors at the end."""
        with ExitStack() as every:
            # The callback added last is called first.
            for number, run in self._runs.items():
                every.callback(run.leave)
                every.callback(self._records.wait, number)


def _report(number: int, run: OpenRun, rows: tuple[Mapping[str, Any], ...]) -> Report:
    path, stopped = run.path, run.seen.stopped
    params = run.state.weights.to_named(run.plan.stated) if run.is_over else None
    return Report(number, path, rows, run.is_over, params=params, stopped=stopped)
