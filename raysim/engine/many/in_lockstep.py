"""Defines the executor of a segment: several runs in this process, which trains runs in lockstep together.

Jobs wait until a caller requests a result. Then the executor trains the clients of all runs in lockstep whose waiting
jobs have the same chunks in one stack (engine/worker/lockstep_rule.py). It carries out any other job like
in_process.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from raysim.algorithm.broadcast import Broadcast
from raysim.cohort.tree import TreeFold
from raysim.engine.in_process import run_job, unit_name, with_retries
from raysim.engine.job import COMBINE, Job, Outcome, on_host
from raysim.engine.numerics import choose_device
from raysim.engine.plan.plan import Plan
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.lockstep_rule import lockstep_key, starts_at_once
from raysim.engine.worker.pool import Pool
from raysim.run_folder.timeline import Span
from raysim.server.sums import Sums


@dataclass(frozen=True)
class _Waiting:
    run: int
    job: Job


class InLockstep:
    """Executor over a pool for each run; `of` returns the executor for one run's loop.

    Args:
        plans: the runs.
        worker: the name of this process in errors and timelines.
        memory: the examples of this process.
    """

    def __init__(self, plans: Sequence[Plan], worker: str, memory: ExampleMemory) -> None:
        self._plans, self._worker = plans, worker
        self._keys = [lockstep_key(plan) if len(plans) > 1 else None for plan in plans]
        self._pools: list[Pool] = []
        for plan, key in zip(plans, self._keys, strict=True):
            alike = [pool for pool, other in zip(self._pools, self._keys, strict=False) if key == other is not None]
            device = choose_device(plan.experiment.engine.gpus_per_worker)
            self._pools.append(Pool(plan, device, worker, memory, alike[0] if alike else None))
        self._waiting: dict[int, _Waiting] = {}
        self._done: dict[int, Outcome] = {}
        self._tickets = itertools.count(1)

    def of(self, run: int) -> OfRun:
        """Return the executor of a run; `run` is its place in `plans`."""
        return OfRun(self, run)

    def submit(self, job: Job, run: int) -> int:
        """Keep the job of a run until a caller requests its result."""
        ticket = next(self._tickets)
        self._waiting[ticket] = _Waiting(run, job)
        return ticket

    def result(self, ticket: int) -> Outcome:
        """Carry out the job, and the waiting jobs of runs in lockstep with the same units."""
        if ticket not in self._done:
            together = self._together(ticket)
            if len(together) > 1:
                self._done |= self._train_together(together)
            else:
                waiting = self._waiting.pop(ticket)
                self._done[ticket] = run_job(waiting.job, self._pools[waiting.run], self._worker)
        return self._done.pop(ticket)

    def _together(self, ticket: int) -> list[int]:
        """Return the tickets of the jobs to train together, this one first."""
        waiting = self._waiting[ticket]
        key, job = self._keys[waiting.run], waiting.job
        if key is None or not _may_join(job):
            return [ticket]
        joined = [
            other
            for other, w in self._waiting.items()
            if self._keys[w.run] == key and _may_join(w.job) and _alike(w.job, job) and other != ticket
        ]
        largest = max(len(chunk) for chunk in job.chunks)
        return [ticket, *joined][: starts_at_once(self._plans[waiting.run], largest)]

    def _train_together(self, tickets: Sequence[int]) -> dict[int, Outcome]:
        waiting = [self._waiting.pop(ticket) for ticket in tickets]
        pools, jobs = [self._pools[w.run] for w in waiting], [w.job for w in waiting]
        units = jobs[0].chunks
        trees: list[TreeFold[Sums]] = [TreeFold(len(units), COMBINE["train"]) for _ in jobs]
        spans, retries = [], 0
        broadcasts = [job.broadcast for job in jobs if isinstance(job.broadcast, Broadcast)]
        for index, chunk in enumerate(units):
            start_s = time.time()
            train = partial(pools[0].train_with, pools, broadcasts, index, chunk)
            each, again = with_retries(train, self._worker, unit_name(jobs[0], index))
            retries += again
            for tree, sums in zip(trees, each, strict=True):
                tree.put_leaf(sums, index)
            spans.append(Span(self._worker, f"train {index} of {len(jobs)} runs", start_s, time.time()))
        # The runs shared the work: each records its share of the time.
        shares = tuple(replace(s, end_s=s.start_s + (s.end_s - s.start_s) / len(jobs)) for s in spans)
        outcomes = [Outcome(on_host(tree.value), shares, workers=1, retries=retries) for tree in trees]
        return dict(zip(tickets, outcomes, strict=True))


class OfRun:
    """Executor of one run of an `InLockstep`."""

    def __init__(self, executor: InLockstep, run: int) -> None:
        self._executor, self._run = executor, run

    def submit(self, job: Job) -> int:
        """See `InLockstep.submit`."""
        return self._executor.submit(job, self._run)

    def result(self, ticket: int) -> Outcome:
        """See `InLockstep.result`."""
        return self._executor.result(ticket)

    def close(self) -> None:
        """Nothing to end."""


def _alike(job: Job, other: Job) -> bool:
    return job.units == other.units and job.broadcast.round == other.broadcast.round


def _may_join(job: Job) -> bool:
    return job.kind == "train" and not job.keep and isinstance(job.broadcast, Broadcast) and not job.broadcast.measures
