"""The executor without Ray: units run in this process, one after another, so breakpoints and profilers just work.

It may carry out several runs at once. Jobs wait until a result is asked for; then the clients of all runs in lockstep
that wait with the same chunks are trained in one stack (worker/lockstep.py).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from raysim.algorithm.phase import Broadcast
from raysim.cohort.tree import TreeFold, fold
from raysim.engine import failure
from raysim.engine.job import COMBINE, Job, Outcome, Shard, on_host
from raysim.engine.numerics import choose_device
from raysim.engine.plan.plan import Plan
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.lockstep import lockstep_key, starts_at_once
from raysim.engine.worker.pool import Pool, sharded
from raysim.run_folder.timeline import Span

log = logging.getLogger("raysim")

Made = TypeVar("Made")

HERE = "this process"


@dataclass(frozen=True)
class _Waiting:
    run: int
    job: Job


class InProcess:
    """Executor over a pool for each run.

    Args:
        plans: the runs; one alone is that of the jobs that `submit` takes.
        worker: how errors and timelines name this process.
        memory: where this process has examples, where it has other runs as well.
    """

    def __init__(self, *plans: Plan, worker: str = HERE, memory: ExampleMemory | None = None) -> None:
        memory = memory or ExampleMemory()
        self._worker = worker
        self._plans = plans
        self._keys = [lockstep_key(plan) if len(plans) > 1 else None for plan in plans]
        self._pools: list[Pool] = []
        for plan, key in zip(plans, self._keys, strict=True):
            alike = [pool for pool, other in zip(self._pools, self._keys, strict=False) if key == other is not None]
            device = choose_device(plan.experiment.engine.gpus_per_worker)
            self._pools.append(Pool(plan, device, worker, memory, alike[0] if alike else None))
        self._waiting: dict[int, _Waiting] = {}
        self._done: dict[int, Outcome] = {}
        self._submitted = 0

    def of(self, run: int) -> OfRun:
        """The executor of the run with this number, in the order of `plans`."""
        return OfRun(self, run)

    def submit(self, job: Job, run: int = 0) -> int:
        """Keep the job until its result is asked for."""
        self._submitted += 1
        self._waiting[self._submitted] = _Waiting(run, job)
        return self._submitted

    def result(self, ticket: int) -> Outcome:
        """Run the job's units in order, and jobs of runs in lockstep that wait with the same units."""
        if ticket not in self._done:
            together = self._together(ticket)
            if len(together) > 1:
                self._done |= self._train_together(together)
            else:
                waiting = self._waiting.pop(ticket)
                self._done[ticket] = self._alone(self._pools[waiting.run], waiting.job)
        return self._done.pop(ticket)

    def close(self) -> None:
        """Nothing to end."""

    def _together(self, ticket: int) -> list[int]:
        """The tickets of what is trained with this one, itself first."""
        asked = self._waiting[ticket]
        key, job = self._keys[asked.run], asked.job
        if key is None or not _may_join(job):
            return [ticket]
        joined = [
            other
            for other, w in self._waiting.items()
            if self._keys[w.run] == key and _may_join(w.job) and _alike(w.job, job) and other != ticket
        ]
        largest = max(len(chunk) for chunk in job.units)
        return [ticket, *joined][: starts_at_once(self._plans[asked.run], largest)]

    def _train_together(self, tickets: Sequence[int]) -> dict[int, Outcome]:
        waiting = [self._waiting.pop(ticket) for ticket in tickets]
        pools, jobs = [self._pools[w.run] for w in waiting], [w.job for w in waiting]
        units = jobs[0].units
        trees: list[TreeFold[Any]] = [TreeFold(len(units), COMBINE["train"]) for _ in jobs]
        spans, retries = [], 0
        broadcasts = [job.broadcast for job in jobs if isinstance(job.broadcast, Broadcast)]
        for index, chunk in enumerate(units):
            start_s = time.time()
            train = partial(pools[0].train_with, pools, broadcasts, index, chunk)
            each, again = tried(train, self._worker, _named(jobs[0], index))
            retries += again
            for tree, sums in zip(trees, each, strict=True):
                tree.put_leaf(sums, index)
            spans.append(Span(self._worker, f"train {index} of {len(jobs)} runs", start_s, time.time()))
        # The work was everybody's: each run has its share of the time on record.
        shares = tuple(replace(s, end_s=s.start_s + (s.end_s - s.start_s) / len(jobs)) for s in spans)
        outcomes = [Outcome(on_host(tree.value), shares, workers=1, retries=retries) for tree in trees]
        return dict(zip(tickets, outcomes, strict=True))

    def _alone(self, pool: Pool, job: Job) -> Outcome:
        spans: list[Span] = []
        rows: dict[int, list[Tensor]] = {index: [] for index in range(len(job.units))}
        retries = 0

        def results() -> Iterator[Any]:
            nonlocal retries
            for index, unit in enumerate(job.units):
                start_s = time.time()
                kept = rows[index] if job.keep else None
                run = partial(pool.run, job.kind, job.broadcast, index, unit, kept)
                value, again = tried(run, self._worker, _named(job, index))
                retries += again
                spans.append(Span(self._worker, f"{job.kind} {index}", start_s, time.time()))
                yield value

        value = on_host(fold(results(), COMBINE[job.kind], len(job.units)))
        shards = tuple(Shard(*b, (part,)) for b, part in zip(job.keep, sharded(rows, job.keep), strict=True))
        return Outcome(value, tuple(spans), workers=1, retries=retries, kept=shards)


class OfRun:
    """One run's view of an `InProcess`."""

    def __init__(self, executor: InProcess, run: int) -> None:
        self._executor, self._run = executor, run

    def submit(self, job: Job) -> int:
        """As `InProcess.submit`."""
        return self._executor.submit(job, self._run)

    def result(self, ticket: int) -> Outcome:
        """As `InProcess.result`."""
        return self._executor.result(ticket)

    def close(self) -> None:
        """Nothing to end."""


def tried(work: Callable[[], Made], worker: str, what: str) -> tuple[Made, int]:
    """What `work` returns, and how often it was done again because a card's memory had not sufficed.

    Raises:
        ResourceError: the budget for that is spent.
    """
    for before in itertools.count():
        try:
            return work(), before
        except torch.OutOfMemoryError as error:
            decision = failure.decide("out_of_memory", before, f"{worker} ran out of device memory on {what}")
            log.warning("%s: %s", decision.reason, error)
            if not decision.retry:
                raise failure.given_up("out_of_memory", decision) from error
        # Here the error is gone, and with it what its frames held.
        torch.cuda.empty_cache()
    raise AssertionError


def _named(job: Job, index: int) -> str:
    return f"chunk {index} of round {job.broadcast.round}"


def _alike(job: Job, other: Job) -> bool:
    return job.units == other.units and job.broadcast.round == other.broadcast.round


def _may_join(job: Job) -> bool:
    return job.kind == "train" and not job.keep and isinstance(job.broadcast, Broadcast) and not job.broadcast.measures
