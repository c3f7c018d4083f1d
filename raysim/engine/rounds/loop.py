"""Runs the loop: sample, plan, train, fold, step, evaluate, record. It works with any executor."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from raysim.config.own_figures import joined
from raysim.engine import failure
from raysim.engine.job import Executor, Outcome, Stopped, UpdatesLost
from raysim.engine.plan import recorded_metrics
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds import best_model, kept_updates, scoring
from raysim.engine.rounds.finished_round import Finished, SteppedRound, finish
from raysim.engine.rounds.selection import transfers
from raysim.engine.rounds.state_files import StateFiles
from raysim.engine.rounds.training import Training, begin, wait
from raysim.errors import CheckpointError, DivergedError, RunFolderError
from raysim.experiment import stopping
from raysim.experiment.experiment import Experiment
from raysim.experiment.row import lost_every_update
from raysim.experiment.stopping import Seen
from raysim.models import memory
from raysim.run_folder.timeline import Stopwatch
from raysim.run_folder.writer import RunFolder
from raysim.server.state import ServerState
from raysim.server.step import NotFiniteError
from raysim.server.sums import Sums
from raysim.server.weighting import check_sum
from raysim.storage.remote.folder import put_meanwhile

log = logging.getLogger("raysim")


def rounds(
    plan: Plan,
    executor: Executor,
    state: ServerState,
    folder: RunFolder | None = None,
    stop: Callable[[], bool] = lambda: False,
    overlap: bool = True,
    seen: Seen | None = None,
) -> Generator[Finished, None, ServerState]:
    """Run from `state` to the experiment's end, yielding each round when it is finished and recorded.

    The next round's model is sent as soon as the server has stepped: a round is evaluated and recorded while the next
    one trains. When the loop ends, also by an error or an interrupt, it checkpoints the last recorded round. It returns
    the state after that round, also where the executor was stopped.

    Args:
        plan: the run.
        executor: carries out the work.
        state: where to continue from; `plan.initial_state()` for a new run.
        folder: where rows and checkpoints go; None writes nothing.
        stop: called between rounds; True ends the loop.
        overlap: start a round before the one before it is evaluated and yielded. If the run stops by that evaluation,
            the started round is dropped.
        seen: what `[stop]` has seen before `state`; None: the folder's rows.
    """
    with put_meanwhile(None if folder is None else folder.path):
        loop = Loop(plan, executor, state, folder, seen=seen)
        try:
            while True:
                if not loop.has_begun_last and (overlap or not loop.stepped) and not stop():
                    loop.begin()
                elif not loop.stepped:
                    break
                if loop.stepped:
                    finished, left_s = loop.finish(), time.perf_counter()
                    yield finished
                    if not overlap:
                        # No work was in flight: the reader used this time.
                        loop.leave_out(time.perf_counter() - left_s)
                if loop.begun and not loop.stops:
                    loop.step()
        except Stopped:
            pass
        finally:
            loop.leave()
        return loop.recorded


class Loop:
    """A run whose caller advances it: `begin`, `step`, `finish` each round; a round may begin before the last finishes.

    Args:
        plan: the run.
        executor: carries out the work.
        state: where to continue from.
        folder: where rows and checkpoints go; None writes nothing.
        written_elsewhere: the run's folder, if clients keep state and another process writes there. The rounds may then
            have to be repeated from an earlier state, so old state files stay until the loop continues from the next
            one.
        seen: what `[stop]` has seen before `state`; None: the folder's rows.
    """

    def __init__(
        self,
        plan: Plan,
        executor: Executor,
        state: ServerState,
        folder: RunFolder | None = None,
        written_elsewhere: Path | None = None,
        seen: Seen | None = None,
    ) -> None:
        memory.keep_freed()
        rows = () if folder is None else folder.rows
        self.seen = stopping.after_all(plan.experiment, rows) if seen is None else seen
        """What `[stop]` has seen of the rounds that are finished and recorded."""
        self.stops = self.seen.stopped is not None
        """Whether the run stops with the newest server step."""
        self.state = state
        """After the newest server step."""
        self.recorded = state
        """After the newest round that is finished and recorded."""
        self._since_s = time.perf_counter()
        """End of the previous round, before its writing."""
        self._writing = Stopwatch()
        self._plan, self._executor, self._folder = plan, executor, folder
        self._algorithm, self._cohorts = plan.algorithm(), plan.cohorts()
        self._evaluations = scoring.plan_units(plan)
        self._unscored = dict.fromkeys(recorded_metrics.evaluation_columns(plan, self._algorithm, state))
        self._state_files = None
        if self._algorithm.state_vectors:
            self._state_files = StateFiles(plan, folder, state, written_elsewhere)
        self._training: Training | None = None
        self._stepped: SteppedRound | None = None
        self._warned_glad = False
        self._advises = True
        if plan.keeps_updates:
            log.info("the updates of a round are kept until it is closed: %.3g MB", plan.kept_bytes / 1e6)

    def continue_from(self, state: ServerState, seen: Seen) -> None:
        """Replace the state between rounds: another process carried out the rounds before it."""
        assert not self.begun
        assert not self.stepped
        self.state = self.recorded = state
        self.seen, self.stops = seen, seen.stopped is not None
        if self._state_files is not None:
            self._state_files.recorded(state)
        self._since_s = time.perf_counter()

    def leave_out(self, passed_s: float) -> None:
        """Do not count these seconds, which have passed, to the next round."""
        self._since_s += passed_s

    @property
    def has_begun_last(self) -> bool:
        """Whether the last round of the run has begun, or the run stops before it."""
        return self.stops or self.state.round + self.begun >= self._plan.experiment.rounds

    @property
    def begun(self) -> bool:
        """Whether a round is in training."""
        return self._training is not None

    @property
    def stepped(self) -> bool:
        """Whether a round has been stepped and is not finished."""
        return self._stepped is not None

    def begin(self, mate: Loop | None = None) -> None:
        """Choose the next round's cohort and submit its training; `mate`: a run in lockstep that has begun it."""
        self._training = self._begin_round(mate=None if mate is None else self._alike(mate))

    def step(self) -> None:
        """Wait for the sums of the round in training, step the server, and submit the evaluations."""
        assert self._training is not None
        training, self._training = self._training, None
        stepped = self._step_round(training)
        self._stepped, self.state = stepped, stepped.state
        clients = stepped.metrics["clients"] or 0
        if self._plan.experiment.server.glad and clients < 2 and not self._warned_glad:
            log.warning("round %d: FedGLAD compares clients, and it has %d: factor 1", self.state.round - 1, clients)
            self._warned_glad = True

    def _alike(self, mate: Loop) -> Training | None:
        """Return the mate's round if this run has the same cohort and chunks."""
        # With simulated devices, the cohort may depend on what the server sends.
        same = self._plan.experiment.systems is None and self.state.round == mate.state.round
        return mate._training if same else None

    def _begin_round(self, probe: int | None = None, mate: Training | None = None) -> Training:
        plan, state = self._plan, self.state
        return begin(plan, self._algorithm, self._cohorts, self._executor, state, plan.keeps_updates, probe, mate)

    def _step_round(self, training: Training) -> SteppedRound:
        """Step the server; if kept updates that it needs were lost, train the round again, to the same bits."""
        for before in itertools.count():
            try:
                return self._step_once(replace(training, times_lost=before))
            except UpdatesLost:
                what = f"the updates of round {self.state.round} were lost with a node"
                decision = failure.decide("worker_lost", before, what)
                if not decision.retry:
                    raise failure.given_up("worker_lost", decision) from None
                log.warning(decision.reason)
                training = self._begin_round(training.probe)
            except NotFiniteError as error:
                raise DivergedError(self._diverged(error)) from None
        raise AssertionError

    def _step_once(self, training: Training) -> SteppedRound:
        """Wait for the round's sums, step the server, and submit the evaluations that are due."""
        plan, algorithm, before = self._plan, self._algorithm, self.state
        training, (*before_outcomes, outcome) = wait(plan, algorithm, self._cohorts, self._executor, before, training)
        earlier, (sums, aggregate) = [phase.sums for phase in before_outcomes], self._aggregated(training, outcome)
        with training.watch.phase("step"):
            state, metrics = algorithm.step(before, (*earlier, sums), aggregate)
            if self._state_files is not None and sums.clients:
                state = self._state_files.committed(state, before.round, training.chunks, sums.rejected)
        metrics = joined(metrics, training.selected.metrics)
        if plan.learns and sums.facts:
            with training.watch.phase("learn"):
                state = self._learnt(state, sums, outcome)
        # The kept updates are not used again: release them.
        outcome = replace(outcome, kept=())
        transferred = transfers(plan, algorithm.traffic, training.selected.num_asked, training.selected.senders)
        is_last = self._note_end({**metrics, **transferred}) or state.round == plan.experiment.rounds
        tickets = None
        if is_last or state.round % plan.experiment.evaluation.every == 0:
            metrics = joined(metrics, scoring.to_optimum(plan, state.weights))
            tickets = self._submitted(state)
        return SteppedRound(state, metrics, sums.rejected, training, (outcome, *before_outcomes), tickets, transferred)

    def _submitted(self, state: ServerState) -> dict[str, int]:
        """Submit the evaluations of the state's model; returns their tickets by name."""
        average = self._algorithm.average(state)
        return scoring.submit(self._plan, self._algorithm, self._executor, state, average, self._evaluations)

    def _aggregated(self, training: Training, outcome: Outcome) -> tuple[Sums, Tensor | None]:
        """Return the sums of the last phase, and what an aggregator makes of the kept updates; None without one.

        Sums that no model can be stepped with have no clients.
        """
        sums, plan, index = outcome.sums, self._plan, self.state.round
        rule = plan.experiment.server.rule
        if sums.clients and sums.weight == 0 and plan.clusters is None:
            log.warning("round %d: every client weighs 0, so the model is left as it is", index)
            return replace(sums, clients=0), None
        if rule is None or not sums.facts:
            return sums, None
        check_sum(sums.weight, index)
        if why := rule.refusal(len(sums.facts)):
            log.warning("round %d: %s after rejections, so the model is left as it is", index, why)
            return replace(sums, clients=0), None
        with training.watch.phase("look"):
            return kept_updates.aggregate(plan, self._executor, rule, sums, outcome.kept, index, training.cohort)

    def _learnt(self, stepped: ServerState, sums: Sums, outcome: Outcome) -> ServerState:
        """Return the state with what the sampler learnt from the round's participants."""
        before = self.state
        moved = stepped.weights.params - self._algorithm.received(before)
        kept = outcome.kept
        participants = kept_updates.participants(self._plan, self._executor, moved, sums, kept, before.round)
        return replace(stepped, sampler=self._cohorts.learn(stepped.sampler, participants, before.round))

    def _note_end(self, row: Mapping[str, float | None]) -> bool:
        """Note and return whether the run ends with a round of these figures: then the round is evaluated."""
        elapsed_s = time.perf_counter() - self._since_s
        now = stopping.after(self._plan.experiment, self.seen, {**row, "wall_time_s": elapsed_s})
        self.stops = now.stopped is not None
        return self.stops

    def _diverged(self, error: NotFiniteError) -> str:
        done = self.state.round
        if not done:
            last = "No round before it was good."
        elif self._folder is None:
            last = f"It was finite after {done} rounds."
        else:
            last = f"The last good state is that of {done} rounds in {self._folder.path / 'checkpoints'}."
        return (
            f"The model diverged in round {done}: {error}. {last} Lower the learning rates (server.optimizer.lr, "
            f"client.optimizer.lr) or bound the updates (server.clip), and start afresh."
        )

    def finish(self) -> Finished:
        """Wait for the evaluations of the round after its step, and record it."""
        assert self._stepped is not None
        stepped, folder = self._stepped, self._folder
        finished = finish(
            self._plan,
            self._algorithm,
            self._executor,
            stepped,
            unscored=self._unscored,
            since_s=self._since_s,
            writing=self._writing,
            advises=self._advises,
        )
        if stepped.evaluations is None and self._stops_with(finished):
            finished = self._scored(stepped.state, finished)
        # Of rounds in a row without an update, the first is told what to do.
        self._advises = not lost_every_update(stepped.metrics)
        # A row cannot contain the time of its own writing: the next row does.
        self._since_s, self._writing = time.perf_counter(), Stopwatch()
        self.seen = stopping.after(self._plan.experiment, self.seen, finished.row)
        self.stops = self.seen.stopped is not None
        finished = replace(finished, stopped=self.seen.stopped)
        with self._writing.phase("write"):
            if folder is not None:
                folder.add(finished.row, finished.clients, finished.spans)
                best_model.keep(folder, self._plan, finished.row, stepped.state)
                if finished.stopped is not None:
                    folder.write_stopped(finished.stopped)
                if checkpoint_due(stepped.state, self._plan.experiment):
                    _checkpoint(folder, stepped.state, self._state_files)
            self.recorded, self._stepped = stepped.state, None
            if self._state_files is not None:
                self._state_files.finished(self.recorded)
        return finished

    def _stops_with(self, finished: Finished) -> bool:
        return stopping.after(self._plan.experiment, self.seen, finished.row).stopped is not None

    def _scored(self, state: ServerState, finished: Finished) -> Finished:
        """Return the round with its scores. Its step did not know it as the last: wall seconds passed until its row."""
        began_s, tickets = time.perf_counter(), self._submitted(state)
        scores, clients, _ = scoring.collect(self._plan, self._algorithm, self._executor, finished.index, tickets)
        scores |= scoring.to_optimum(self._plan, state.weights)
        wall_s = (finished.metrics["wall_time_s"] or 0) + time.perf_counter() - began_s
        metrics = {**finished.metrics, **scores, "wall_time_s": wall_s}
        return replace(finished, metrics=metrics, clients=clients)

    def leave(self) -> None:
        """Checkpoint the last recorded round; flush the client states to the disk; give back memory that was kept."""
        memory.give_back()
        failed = self._folder is not None and self._folder.failed
        try:
            if self._folder is not None:
                self._folder.check_there()
            if self._folder is not None and self._folder.checkpointed < self.recorded.round:
                _checkpoint(self._folder, self.recorded, self._state_files)
            elif self._state_files is not None:
                self._state_files.flush()
        except (CheckpointError, RunFolderError):
            # Another error, on its way out, has said so.
            if not failed:
                raise


def checkpoint_due(state: ServerState, experiment: Experiment) -> bool:
    """Whether a checkpoint is due after the round before `state`."""
    return state.round % experiment.checkpoint.every == 0 or state.round == experiment.rounds


def _checkpoint(folder: RunFolder, state: ServerState, state_files: StateFiles | None) -> None:
    if state_files is not None:
        state_files.flush()
    folder.checkpoint(state)
