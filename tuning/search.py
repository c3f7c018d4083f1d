"""Runs the study's loop: take trials, run their seeds, receive reports, and store the outcomes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from raysim import (
    ClientError,
    DataError,
    DeviceMemoryError,
    DivergedError,
    Experiment,
    ExperimentError,
    ModelError,
    Report,
    Runs,
    WorkerLostError,
)
from tuning import pruners, samplers
from tuning.current_trial import TrialUnderWay
from tuning.errors import StudyError
from tuning.folder import clear_unfinished
from tuning.in_order import SeedNews
from tuning.kept_trial import DIVERGED, FAILED, FINISHED, MISSED, PRUNED
from tuning.ledger import Held, Ledger
from tuning.noise import laplace
from tuning.objective import divergence
from tuning.progress import StudyProgress
from tuning.protocol import runs_of, stages_of
from tuning.pruners import NoPruner
from tuning.section import TuningSection
from tuning.space import points

TRIAL_ERRORS = (ClientError, ModelError, ExperimentError, DataError, DeviceMemoryError)
"""Errors of a configuration or of a user's code, which fail the trial. Any other error ends the process, such as
that there is no worker."""

RUN_ERRORS = (*TRIAL_ERRORS, WorkerLostError)
"""Likewise, reported of one run: it has cost its workers, as often as they may be replaced, and the others go on."""

POLL_S, INHERIT_S = 1.0, 10.0
"""Seconds between checks of the other processes: without work, and during work."""


def trial_folder(folder: Path, number: int) -> Path:
    """Return the folder of a trial's runs, which has a folder per seed."""
    return folder / "trials" / f"{number:04d}"


def stage_folder(folder: Path, number: int, cohort: int | None) -> Path:
    """Return the folder of a trial's runs with a smaller cohort; None: with the whole one.

    Smaller cohorts are beside the trials: `raysim best` chooses among these.
    """
    return trial_folder(folder if cohort is None else folder / "smaller" / f"cohort-{cohort}", number)


class Search:
    """One process's part in a study."""

    def __init__(
        self,
        tuning: TuningSection,
        measured: Experiment,
        ledger: Ledger,
        runs: Runs,
        folder: Path,
        progress: StudyProgress,
    ) -> None:
        self._tuning, self._measured, self._ledger, self._runs = tuning, measured, ledger, runs
        self._folder, self._progress = folder, progress
        self._by_seed = pruners.looks_at_seeds(tuning.pruner)
        self._cohorts = (*pruners.cohorts(tuning.pruner), None)
        self._trials: dict[int, TrialUnderWay] = {}
        """Trials by the numbers of their runs."""
        self._inherited_s = -math.inf
        self._writing: deque[Future[None]] = deque()

    def run(self) -> None:
        """Work until every trial of the study is finished, by any process.

        Raises:
            RaysimError: an error that no trial caused; trials under way resume with the study.
        """
        self._runs.expect(self._rounds(self._ledger.num_open()))
        if self._tuning.budget is None:
            self._progress.expects(self._rounds(self._ledger.num_open()))
        with ThreadPoolExecutor(1, thread_name_prefix="study") as self._writer:
            self._search()

    def _rounds(self, trials: int) -> int:
        return trials * len(self._cohorts) * self._tuning.seeds * self._measured.rounds

    def _search(self) -> None:
        self._fill()
        while True:
            for report in self._runs.reports():
                if self._receive(report):
                    self._fill()
            if not self._ledger.num_open():
                return
            self._inherited_s = -math.inf
            if not self._fill():
                time.sleep(POLL_S)

    def _fill(self) -> bool:
        """Begin as many trials as there is room for; return whether there were any."""
        room = self._tuning.at_a_time(self._runs.workers) - len({id(trial) for trial in self._trials.values()})
        if room <= 0:
            return False
        inherited = False
        if time.monotonic() - self._inherited_s > INHERIT_S:
            self._inherited_s = time.monotonic()
            # Before new trials, whose proposals and pruning would else not know of those that were begun.
            inherited = self._ledger.inherit()
        taken = self._ledger.take(room) if inherited or not self._ledger.is_dealt else []
        if self._tuning.budget is not None:
            # How many trials it is enough for is not known before.
            self._progress.expects(self._rounds(len(taken)))
            self._runs.expect(self._rounds(self._ledger.num_open()))
        for resumed in (True, False):
            chosen = [held for held in taken if held.resumed == resumed]
            self._begin([trial for held in chosen if (trial := self._prepared(held)) is not None], resumed)
        return bool(taken)

    def _prepared(self, held: Held) -> TrialUnderWay | None:
        try:
            stages = stages_of(self._measured, self._tuning, held.values)
        except ExperimentError as error:
            self._end(held, FAILED, TrialState.FAIL, None, {"why": str(error)})
            return None
        paths = [stage_folder(self._folder, held.number, cohort) for cohort in self._cohorts]
        return TrialUnderWay(
            held,
            [
                [(seed, path / f"seed-{place}") for place, seed in enumerate(experiments)]
                for path, experiments in zip(paths, stages, strict=True)
            ],
            self._by_seed,
        )

    def _begin(self, trials: Sequence[TrialUnderWay], resume: bool) -> None:
        places = [(trial, place) for trial in trials for place in range(1 if self._by_seed else len(trial.runs))]
        try:
            self._start(places, resume)
        except TRIAL_ERRORS:
            # One of them cannot be run: begun one by one, the faulty one shows.
            for trial in trials:
                try:
                    self._start([pair for pair in places if pair[0] is trial], resume)
                except TRIAL_ERRORS as error:
                    if self._is_of_every_trial(str(error)):
                        raise
                    self._fail(trial, str(error))

    def _is_of_every_trial(self, why: str) -> bool:
        """Whether no configuration can be run, for the same reason, such as a part that was not passed."""
        for _, values in points(self._tuning.parsed_space()):
            try:
                self._runs.check(runs_of(self._measured, self._tuning, values)[0])
            except TRIAL_ERRORS as error:
                if str(error) == why:
                    continue
            return False
        return True

    def _go_on(self, trial: TrialUnderWay, places: Iterable[int]) -> bool:
        """Begin further seeds; return whether they could begin, else their trial has ended."""
        try:
            self._start([(trial, place) for place in places], resume=trial.held.resumed)
        except TRIAL_ERRORS as error:
            self._fail(trial, str(error))
            return False
        return True

    def _start(self, places: Sequence[tuple[TrialUnderWay, int]], resume: bool) -> None:
        if not places:
            return
        if resume:
            for trial, place in places:
                clear_unfinished(trial.runs[place][1], self._folder)
        # An existing folder of a new trial belongs to a study that no longer exists.
        numbers = self._runs.start([trial.runs[place] for trial, place in places], resume=resume, overwrite=not resume)
        for number, (trial, place) in zip(numbers, places, strict=True):
            trial.numbers[number] = place
            self._trials[number] = trial

    def _receive(self, report: Report) -> bool:
        """Add a run's report; return whether its trial has ended by it."""
        trial = self._trials.get(report.run)
        if trial is None:
            # The run was finished already when its trial was stopped.
            return False
        self._progress.finished(len(report.rows))
        if report.finished or report.error is not None:
            del self._trials[report.run]
        return any(self._learn(trial, news) for news in trial.add(report))

    def _learn(self, trial: TrialUnderWay, news: SeedNews) -> bool:
        """Take what is new of a trial; return whether it has ended by it."""
        if isinstance(news.error, DivergedError):
            self._diverged(trial, str(news.error))
            return True
        if news.error is not None:
            if not isinstance(news.error, RUN_ERRORS):
                raise news.error
            self._fail(trial, str(news.error))
            return True
        if (why := divergence(news.rows)) is not None:
            self._diverged(trial, why)
            return True
        if (why := trial.recorded.lacks(self._tuning.objective)) is not None:
            self._fail(trial, why)
            return True
        fresh = trial.fresh_steps(self._tuning.objective, self._by_seed)
        steps = {step: value + self._noise(trial, step + 1) for step, value in fresh.items()}
        self._report(trial, steps)
        if trial.is_at_end:
            objective = self._tuning.objective
            value = trial.recorded.value(objective) + self._noise(trial, 0)
            missed = trial.recorded.missed(objective)
            self._close(trial, MISSED if missed else FINISHED, TrialState.COMPLETE, value, missed)
            return True
        if steps and self._may_prune(trial) and self._written() and trial.held.trial.should_prune():
            self._close(trial, PRUNED, TrialState.PRUNED, None)
            return True
        if news.finished:
            if self._by_seed:
                return not self._go_on(trial, [news.place + 1])
            if trial.recorded.is_complete:
                trial.advance()
                return not self._go_on(trial, range(len(trial.runs)))
        return False

    def _noise(self, trial: TrialUnderWay, place: int) -> float:
        return laplace(self._tuning.laplace, [self._measured.seed, trial.held.slot, place])

    def _report(self, trial: TrialUnderWay, steps: Mapping[int, float]) -> None:
        """Store steps while the workers continue; of two objectives there are none."""
        if self._tuning.cost is not None:
            return
        for step, value in steps.items():
            if (known := trial.known_steps.get(step)) is None:
                self._writing.append(self._writer.submit(trial.held.trial.report, value, step))
            elif known != value and not (math.isnan(known) and math.isnan(value)):
                raise StudyError(
                    f"Trial {trial.held.number} is damaged in the study's storage: its value at step {step} is "
                    f"{value!r}, and the storage has {known!r}. Restore the storage, or give the study another folder "
                    f"(--path, path=)."
                )

    def _written(self) -> bool:
        """Wait until every step is stored; raise the error of storing, if any."""
        while self._writing:
            self._writing.popleft().result()
        return True

    def _may_prune(self, trial: TrialUnderWay) -> bool:
        """Return whether to ask a pruner: not if no work is left to save, or if the trial went on before."""
        if isinstance(self._tuning.pruner, NoPruner) or trial.went_on:
            return False
        return self._by_seed or trial.recorded.is_complete or not trial.recorded.has_all_rounds

    def _diverged(self, trial: TrialUnderWay, why: str) -> None:
        worst = self._tuning.objective.worst
        if samplers.learns_from_finished_only(self._tuning.chosen_sampler()):
            self._close(trial, DIVERGED, TrialState.COMPLETE, worst, why)
            return
        # For Optuna the value of a stopped trial is its last reported value.
        self._report(trial, {1 + max(trial.reported, default=0): worst})
        self._close(trial, DIVERGED, TrialState.PRUNED, None, why)

    def _fail(self, trial: TrialUnderWay, why: str) -> None:
        self._close(trial, FAILED, TrialState.FAIL, None, why)

    def _close(
        self, trial: TrialUnderWay, outcome: str, state: TrialState, value: float | None, why: str | None = None
    ) -> None:
        for number in [number for number, other in self._trials.items() if other is trial]:
            if number in trial.numbers:
                self._runs.stop(number)
            del self._trials[number]
        self._progress.finished(trial.rounds_left)
        facts = trial.facts(self._tuning.objective)
        self._end(trial.held, outcome, state, value, {**facts, "why": why})

    def _end(self, held: Held, outcome: str, state: TrialState, value: float | None, facts: Mapping[str, Any]) -> None:
        self._written()
        self._ledger.end(held, outcome, state, self._tuning.values_of(value, facts.get("spent", {})), facts)
        self._progress.ended(held.number, outcome, value if outcome == FINISHED else None, held.values)
