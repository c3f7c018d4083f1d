"""Defines the interface of an executor that several runs share, and the one in this process.

The one on Ray is in on_ray/executor/shared_on_ray.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from functools import partial
from typing import Protocol

from raysim.engine.in_process import HERE, with_retries
from raysim.engine.job import Executor, Job, Outcome
from raysim.engine.many.segment import Host
from raysim.engine.plan.plan import Plan


class SharedExecutor(Executor, Protocol):
    """Carries out segments; an error ends only its job."""

    @property
    def workers(self) -> int:
        """Number of segments that it carries out at a time."""
        ...

    def send(self, plan: Plan) -> Callable[[], Plan]:
        """Send a run to where every worker can fetch it; returns a function that returns the plan on a worker.

        The run's memory is freed when the function is deleted.
        """
        ...

    def first(self, tickets: Collection[int]) -> int:
        """Wait until one of these jobs has ended; returns its ticket."""
        ...


class SharedInProcess:
    """See `SharedExecutor`: this process is the one worker. `result` carries the segment out."""

    workers = 1

    def __init__(self) -> None:
        self._host = Host(HERE)
        self._waiting: dict[int, Job] = {}
        self._tickets = itertools.count(1)

    def send(self, plan: Plan) -> Callable[[], Plan]:
        """See `SharedExecutor`."""
        return lambda: plan

    def submit(self, job: Job) -> int:
        """See `Executor`."""
        ticket = next(self._tickets)
        self._waiting[ticket] = job
        return ticket

    def first(self, tickets: Collection[int]) -> int:
        """See `SharedExecutor`."""
        return next(iter(tickets))

    def result(self, ticket: int) -> Outcome:
        """See `Executor`."""
        job = self._waiting.pop(ticket)
        (unit,) = job.units
        advanced, retries = with_retries(
            partial(self._host.run, job.kind, job.broadcast, 0, unit, None), HERE, "a segment"
        )
        return Outcome(advanced, (), workers=1, retries=retries)

    def close(self) -> None:
        """See `Executor`."""
