"""A segment: some rounds of one run, or of several in lockstep, carried out in one process.

It is a pure function of plans and states: where it is carried out, and where the one before was, changes no bit. So
several runs share workers without waiting at each other's rounds: whoever is free takes the next segment of some run,
and a worker that dies costs its segment again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from raysim.engine import numerics
from raysim.engine.in_process import InProcess
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.loop import Loop, checkpoint_due
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.run_folder.timeline import Span
from raysim.server.state import ServerState

LONGEST_S = 5.0
"""A segment ends after this long, wherever its runs are: losing it costs no more, and its rows are seen."""


class Told(NamedTuple):
    """What a finished round leaves: its row, its evaluated clients if there are any, and what was done when."""

    row: dict[str, Any]
    clients: pa.Table | None
    spans: tuple[Span, ...]


class Advanced(NamedTuple):
    """A run at the end of a segment: its state, and the rounds in between."""

    state: ServerState
    rounds: tuple[Told, ...]


class Host:
    """Carries out segments in this process; what it made for runs it keeps for their next segments.

    Args:
        worker: how errors and timelines name this process.
        share: of a card's memory, what this process may use.
    """

    def __init__(self, worker: str, share: float = 1.0) -> None:
        self._worker = worker
        self._memory = ExampleMemory(share)
        self._plans: dict[int, Plan] = {}
        self._loops: dict[tuple[int, ...], list[Loop]] = {}

    def learn(self, number: int, plan: Plan) -> None:
        """Be told a run, before its first segment here."""
        self._plans[number] = plan

    def keep_only(self, numbers: Collection[int]) -> None:
        """Let go of all other runs: they have ended."""
        self._plans = {number: plan for number, plan in self._plans.items() if number in numbers}
        self._loops = {group: loops for group, loops in self._loops.items() if set(group) <= set(numbers)}
        self._memory.keep_only({plan.dataset.fingerprint for plan in self._plans.values()})

    def advance(self, group: tuple[int, ...], states: Sequence[ServerState]) -> list[Advanced]:
        """Run each from its state to its next evaluation, checkpoint or last round, or for LONGEST_S."""
        plans = [self._plans[number] for number in group]
        if group in self._loops:
            for own, state in zip(self._loops[group], states, strict=True):
                own.go_on_from(state)
        else:
            # Groups only ever shrink: what was made for a larger one is not asked for again.
            self._loops = {other: loops for other, loops in self._loops.items() if not set(other) & set(group)}
            # Whoever gave the group out decides what becomes of it, and may have its runs go on one by one.
            executor = InProcess(*plans, worker=self._worker, memory=self._memory, tries_again=False)
            self._loops[group] = [
                Loop(plan, executor.of(i), state, checkpoints=None if plan.states is None else plan.states.parent)
                for i, (plan, state) in enumerate(zip(plans, states, strict=True))
            ]
        loops = self._loops[group]
        engine = plans[0].experiment.engine
        with numerics.fixed(engine.threads, numerics.choose_device(engine.gpus_per_worker), engine.precision):
            return _advance(loops, plans, time.monotonic() + LONGEST_S)


def _advance(loops: Sequence[Loop], plans: Sequence[Plan], deadline_s: float) -> list[Advanced]:
    """Move the runs in lockstep, so that those alike train together, until each has something to tell or time is up."""
    rounds: list[list[Told]] = [[] for _ in loops]
    moving = [i for i, own in enumerate(loops) if not own.done]
    while moving:
        for i in moving:
            loops[i].begin()
        for i in moving:
            loops[i].step()
        for i in moving:
            finished = loops[i].finish()
            rounds[i].append(Told(finished.row, finished.clients, finished.spans))
        in_time = time.monotonic() < deadline_s
        moving = [i for i in moving if in_time and not _tells(plans[i], loops[i])]
    for own in loops:
        own.leave()
    return [Advanced(own.state, tuple(told)) for own, told in zip(loops, rounds, strict=True)]


def _tells(plan: Plan, own: Loop) -> bool:
    e = plan.experiment
    return own.done or own.state.round % e.evaluation.every == 0 or checkpoint_due(own.state, e)
