"""Jobs from their submission to their outcome."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import ray

from raysim.engine import wire
from raysim.engine.job import COMBINE, Job, Outcome
from raysim.engine.on_ray.crew import Crew
from raysim.engine.on_ray.running import Running
from raysim.engine.schedule import Schedule
from raysim.fold import TreeFold

INLINE_BYTES = 64 << 10
"""A broadcast up to this size travels inside the first call to a worker: the object store would cost a millisecond."""


class Jobs:
    """Those under way, by ticket, and the outcomes that nobody has asked for yet.

    Args:
        crew: who carries them out.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._running: dict[int, Running] = {}
        self._done: dict[int, Outcome] = {}
        self._tickets = itertools.count(1)

    def __getitem__(self, ticket: int) -> Running:
        return self._running[ticket]

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._running

    def __iter__(self) -> Iterator[Running]:
        return iter(list(self._running.values()))

    def begin(self, job: Job) -> int:
        """Put the broadcast where every node can map it; returns the job's ticket."""
        start_s = time.perf_counter()
        ticket = next(self._tickets)
        packed = wire.pack(job.broadcast)
        num_bytes = wire.num_bytes(packed)
        inline = num_bytes <= INLINE_BYTES
        self._running[ticket] = Running(
            ticket=ticket,
            job=job,
            schedule=Schedule(job.costs, self._crew.workers.ready()),
            tree=TreeFold(len(job.units), COMBINE[job.kind]),
            broadcast=packed if inline else ray.put(packed),
            num_bytes=num_bytes,
            inline=inline,
            put_s=time.perf_counter() - start_s,
        )
        return ticket

    def end_if_whole(self, ticket: int) -> None:
        """A job whose sums are all there comes to its outcome."""
        # Replies are settled in any order: the sums may be whole before the last call has said how long it took.
        running = self._running[ticket]
        if not running.tree.complete or any(self._crew.calls.of_job(ticket)):
            return
        del self._running[ticket]
        workers = self._crew.workers
        self._done[ticket] = running.outcome(max(1, len(workers.ready())), workers.nodes)

    def drop(self, ticket: int) -> Running:
        """Let go of a job that comes to nothing; returns how far it was."""
        return self._running.pop(ticket)

    def take(self, ticket: int) -> Outcome | None:
        """Hand over an outcome, once; None while the job is under way."""
        return self._done.pop(ticket, None)
