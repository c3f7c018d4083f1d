"""Defines the executor without Ray: units run in this process, one after another, so breakpoints and profilers work."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from raysim import card
from raysim.cohort.tree import fold
from raysim.engine import failure
from raysim.engine.job import COMBINE, UNITS, Job, Outcome, Shard, Stopped, on_host
from raysim.engine.numerics import choose_device
from raysim.engine.outlook import Outlook
from raysim.engine.plan.plan import Plan
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.pool import Pool
from raysim.engine.worker.shard_work import cut_into_shards
from raysim.run_folder.timeline import Span

log = logging.getLogger("raysim")

Result = TypeVar("Result")

HERE = "this process"


class InProcess:
    """Executor over one pool.

    Args:
        plan: the run.
        memory: the examples of this process, if it shares them with other runs.
        outlook: counts the work, if the run may move to workers; if it should in mid-round, `result` raises `Stopped`.
    """

    def __init__(self, plan: Plan, memory: ExampleMemory | None = None, outlook: Outlook | None = None) -> None:
        device = choose_device(plan.experiment.engine.gpus_per_worker)
        self._pool = Pool(plan, device, HERE, memory or ExampleMemory())
        self._outlook = outlook
        self._waiting: dict[int, Job] = {}
        self._tickets = itertools.count(1)

    def submit(self, job: Job) -> int:
        """Keep the job until a caller requests its result."""
        ticket = next(self._tickets)
        self._waiting[ticket] = job
        return ticket

    def result(self, ticket: int) -> Outcome:
        """Run the job's units in order."""
        return run_job(self._waiting.pop(ticket), self._pool, HERE, self._outlook)

    def close(self) -> None:
        """Nothing to end."""


def run_job(job: Job, pool: Pool, worker: str, outlook: Outlook | None = None) -> Outcome:
    """Run a job's units in order; `worker` is the name of this process in errors and timelines.

    Raises:
        Stopped: the outlook says that the round is better carried out by workers.
    """
    spans: list[Span] = []
    rows: dict[int, list[Tensor]] = {index: [] for index in range(len(job.units))}
    retries = 0
    up_to = list(itertools.accumulate(job.costs)) if outlook and job.kind == "train" else [0.0] * len(rows)

    def results() -> Iterator[object]:
        nonlocal retries
        for index, unit in enumerate(job.units):
            start_s = time.time()
            run = partial(pool.run, job.kind, job.broadcast, index, unit, rows[index] if job.keep else None)
            value, again = with_retries(run, worker, unit_name(job, index))
            retries += again
            spans.append(Span(worker, f"{job.kind} {index}", start_s, time.time()))
            if outlook:
                outlook.work(spans[-1].end_s - start_s, up_to[index] / (up_to[-1] or 1))
                if outlook.breaks_off:
                    raise Stopped
            yield value

    value = on_host(fold(results(), COMBINE[job.kind], len(job.units)))
    shards = tuple(Shard(*b, (part,)) for b, part in zip(job.keep, cut_into_shards(rows, job.keep), strict=True))
    return Outcome(value, tuple(spans), workers=1, retries=retries, kept=shards)


def with_retries(work: Callable[[], Result], worker: str, what: str) -> tuple[Result, int]:
    """Call `work`, again if a card's memory does not suffice; returns its result and the number of retries.

    Raises:
        DeviceMemoryError: the budget of retries is spent.
    """
    for before in itertools.count():
        try:
            return work(), before
        except torch.OutOfMemoryError as error:
            decision = failure.decide("out_of_memory", before, f"{worker} ran out of device memory on {what}")
            if not decision.retry:
                raise failure.given_up("out_of_memory", decision) from error
            log.warning("%s: %s", decision.reason, error)
        # Here the error is deleted, and with it the tensors of its frames.
        card.release_memory()
    raise AssertionError


def unit_name(job: Job, index: int) -> str:
    """Return the name of a unit in messages."""
    return f"{UNITS[job.kind]} {index} of round {job.broadcast.round}"
