"""Carries out a segment: some rounds of one run, or of several runs in lockstep, in one process.

A segment is a pure function of plans and states: the worker that carries it out changes no bit. So several runs share
workers without waiting for each other's rounds. A free worker takes the next segment of any run. If a worker dies, only
its segment is repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from torch import Tensor

from raysim.engine import numerics
from raysim.engine.job import Job, JobBroadcast, Kind, Outcome, RunStates
from raysim.engine.many.groups import Group
from raysim.engine.many.in_lockstep import InLockstep
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.loop import Loop
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.experiment.pauses import pauses_after
from raysim.experiment.stopping import NOTHING, Seen
from raysim.run_folder.timeline import Span
from raysim.server.state import ServerState

LONGEST_S = 5.0
"""A segment ends after this time, at the end of a round: its loss costs no more, and its rows appear."""


@dataclass(frozen=True)
class SegmentUnit:
    """A segment as the unit of its job.

    plans: by number of the run, a function that returns its plan. under_way: all runs that have not ended yet. seen: by
    number, what the run's `[stop]` has seen before.
    """

    plans: Mapping[int, Callable[[], Plan]]
    under_way: Set[int]
    seen: Mapping[int, Seen] = field(default_factory=dict)


def job_of(
    plans: Mapping[int, Callable[[], Plan]],
    states: list[ServerState],
    under_way: Set[int],
    seen: Mapping[int, Seen] | None = None,
) -> Job:
    """Return the job of a segment of these runs, from these states; `seen`: None before the first rounds."""
    broadcast = RunStates(min(state.round for state in states), states)
    return Job("segment", broadcast, (SegmentUnit(plans, under_way, seen or {}),), (1.0,), runs=tuple(plans))


class RoundRecord(NamedTuple):
    """A finished round: its row, the table of its evaluated clients if there is one, and its timeline."""

    row: dict[str, Any]
    clients: pa.Table | None
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Advanced:
    """A run at the end of a segment: its state, what its `[stop]` has seen, and the rounds of the segment."""

    state: ServerState
    seen: Seen
    rounds: tuple[RoundRecord, ...]


def advanced_of(outcome: Outcome) -> list[Advanced]:
    """Return the runs at the end of a segment, from the outcome of its job."""
    assert isinstance(outcome.value, list)
    return outcome.value


class Host:
    """Carries out segments in this process. It keeps plans and loops for the next segments of the same runs.

    Args:
        worker: the name of this process in errors and timelines.
        share: the share of a card's memory that this process may use.
    """

    def __init__(self, worker: str, share: float = 1.0) -> None:
        self._worker = worker
        self._memory = ExampleMemory(share)
        self._plans: dict[int, Plan] = {}
        self._loops: dict[Group, Sequence[Loop]] = {}

    def run(
        self, kind: Kind, broadcast: JobBroadcast, index: int, unit: object, kept: list[Tensor] | None
    ) -> list[Advanced]:
        """Carry out a unit of a job of segments; see `Pool.run`."""
        assert isinstance(broadcast, RunStates)
        assert isinstance(unit, SegmentUnit)
        return self.advance(broadcast, unit)

    def advance(self, sent: RunStates, unit: SegmentUnit) -> list[Advanced]:
        """Advance each run from its state to its next evaluation, checkpoint or end, or for LONGEST_S."""
        self._keep_only(unit.under_way)
        for number, plan in unit.plans.items():
            if number not in self._plans:
                self._plans[number] = plan()
        group = tuple(unit.plans)
        plans = [self._plans[number] for number in group]
        seen = [unit.seen.get(number, NOTHING) for number in group]
        engine = plans[0].experiment.engine
        with numerics.fixed(engine.threads, numerics.choose_device(engine.gpus_per_worker), engine.precision):
            loops = self._loops_of(group, plans, sent.states, seen)
            advanced = _advance(loops, plans, time.monotonic() + LONGEST_S)
        self._loops[group] = loops
        return advanced

    def _loops_of(
        self, group: Group, plans: Sequence[Plan], states: Sequence[ServerState], seen: Sequence[Seen]
    ) -> Sequence[Loop]:
        """Take the group's loops out, or make them, before the round that follows each state."""
        # The loops are put back when they are between rounds again. After an error they are not.
        if (loops := self._loops.pop(group, None)) is not None:
            for loop, state, before in zip(loops, states, seen, strict=True):
                loop.continue_from(state, before)
            return loops
        # Groups only shrink: the loops of a larger group are not used again.
        self._loops = {other: loops for other, loops in self._loops.items() if not set(other) & set(group)}
        executor = InLockstep(plans, self._worker, self._memory)
        folders = [None if plan.states is None else plan.states.parent for plan in plans]
        return [
            Loop(plan, executor.of(i), state, written_elsewhere=path, seen=before)
            for i, (plan, state, path, before) in enumerate(zip(plans, states, folders, seen, strict=True))
        ]

    def _keep_only(self, numbers: Set[int]) -> None:
        self._plans = {number: plan for number, plan in self._plans.items() if number in numbers}
        self._loops = {group: loops for group, loops in self._loops.items() if set(group) <= numbers}
        self._memory.keep_only({plan.dataset.fingerprint for plan in self._plans.values()})


def _advance(loops: Sequence[Loop], plans: Sequence[Plan], deadline_s: float) -> list[Advanced]:
    """Advance the runs in lockstep, so that equal jobs train together, until each must pause or the time is up."""
    rounds: list[list[RoundRecord]] = [[] for _ in loops]
    moving = [i for i, loop in enumerate(loops) if not loop.has_begun_last]
    while moving:
        first, *others = moving
        loops[first].begin()
        for i in others:
            loops[i].begin(loops[first])
        for i in moving:
            loops[i].step()
        for i in moving:
            finished = loops[i].finish()
            rounds[i].append(RoundRecord(finished.row, finished.clients, finished.spans))
        in_time = time.monotonic() < deadline_s
        moving = [i for i in moving if in_time and not _must_pause(plans[i], loops[i])]
    for loop in loops:
        loop.leave()
    return [Advanced(loop.state, loop.seen, tuple(records)) for loop, records in zip(loops, rounds, strict=True)]


def _must_pause(plan: Plan, loop: Loop) -> bool:
    return loop.has_begun_last or pauses_after(plan.experiment, loop.state.round)
