"""A segment: some rounds of one run, or of several in lockstep, carried out in one process.

It is a pure function of plans and states: where it is carried out, and where the one before was, changes no bit. So
several runs share workers without waiting at each other's rounds: whoever is free takes the next segment of some run,
and a worker that dies costs its segment again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from raysim.engine import numerics
from raysim.engine.job import Job, RunStates
from raysim.engine.many.groups import Group
from raysim.engine.many.in_lockstep import InLockstep
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.loop import Loop, checkpoint_due
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.run_folder.timeline import Span
from raysim.server.state import ServerState

LONGEST_S = 5.0
"""A segment ends after this long, wherever its runs are: losing it costs no more, and its rows are seen."""


@dataclass(frozen=True)
class SegmentUnit:
    """A segment as the unit of its job.

    plans: by number, what returns the plan of each of its runs. under_way: all runs that have not ended yet.
    """

    plans: Mapping[int, Callable[[], Plan]]
    under_way: Set[int]


def job_of(plans: Mapping[int, Callable[[], Plan]], states: list[ServerState], under_way: Set[int]) -> Job:
    """The segment of these runs, from these states, as a job."""
    broadcast = RunStates(min(state.round for state in states), states)
    return Job("segment", broadcast, (SegmentUnit(plans, under_way),), (1.0,), runs=tuple(plans))


class RoundRecord(NamedTuple):
    """What a finished round leaves: its row, its evaluated clients if there are any, and what was done when."""

    row: dict[str, Any]
    clients: pa.Table | None
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Advanced:
    """A run at the end of a segment: its state, and the rounds in between."""

    state: ServerState
    rounds: tuple[RoundRecord, ...]


class Host:
    """Carries out segments in this process; what it made for runs it keeps for their next segments, until they end.

    Args:
        worker: how errors and timelines name this process.
        share: of a card's memory, what this process may use.
    """

    def __init__(self, worker: str, share: float = 1.0) -> None:
        self._worker = worker
        self._memory = ExampleMemory(share)
        self._plans: dict[int, Plan] = {}
        self._loops: dict[Group, list[Loop]] = {}

    def advance(self, sent: RunStates, unit: SegmentUnit) -> list[Advanced]:
        """Run each from its state to its next evaluation, checkpoint or last round, or for LONGEST_S."""
        self._keep_only(unit.under_way)
        for number, plan in unit.plans.items():
            if number not in self._plans:
                self._plans[number] = plan()
        group = tuple(unit.plans)
        plans = [self._plans[number] for number in group]
        # They are put back when they are between rounds again, and not where something fails.
        loops = self._loops.pop(group, None)
        if loops is None:
            # Groups only ever shrink: what was made for a larger one is not asked for again.
            self._loops = {other: loops for other, loops in self._loops.items() if not set(other) & set(group)}
            executor = InLockstep(plans, self._worker, self._memory)
            loops = [
                Loop(plan, executor.of(i), state, checkpoints=None if plan.states is None else plan.states.parent)
                for i, (plan, state) in enumerate(zip(plans, sent.states, strict=True))
            ]
        else:
            for own, state in zip(loops, sent.states, strict=True):
                own.go_on_from(state)
        engine = plans[0].experiment.engine
        with numerics.fixed(engine.threads, numerics.choose_device(engine.gpus_per_worker), engine.precision):
            advanced = _advance(loops, plans, time.monotonic() + LONGEST_S)
        self._loops[group] = loops
        return advanced

    def _keep_only(self, numbers: Set[int]) -> None:
        self._plans = {number: plan for number, plan in self._plans.items() if number in numbers}
        self._loops = {group: loops for group, loops in self._loops.items() if set(group) <= numbers}
        self._memory.keep_only({plan.dataset.fingerprint for plan in self._plans.values()})


def _advance(loops: Sequence[Loop], plans: Sequence[Plan], deadline_s: float) -> list[Advanced]:
    """Move the runs in lockstep, so that those alike train together, until each has something to tell or time is up."""
    rounds: list[list[RoundRecord]] = [[] for _ in loops]
    moving = [i for i, own in enumerate(loops) if not own.done]
    while moving:
        for i in moving:
            loops[i].begin()
        for i in moving:
            loops[i].step()
        for i in moving:
            finished = loops[i].finish()
            rounds[i].append(RoundRecord(finished.row, finished.clients, finished.spans))
        in_time = time.monotonic() < deadline_s
        moving = [i for i in moving if in_time and not _tells(plans[i], loops[i])]
    for own in loops:
        own.leave()
    return [Advanced(own.state, tuple(told)) for own, told in zip(loops, rounds, strict=True)]


def _tells(plan: Plan, own: Loop) -> bool:
    e = plan.experiment
    return own.done or own.state.round % e.evaluation.every == 0 or checkpoint_due(own.state, e)
