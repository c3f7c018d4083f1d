"""The executor without Ray: units run in this process, one after another, so breakpoints and profilers just work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from raysim.engine.job import COMBINE, Job, Outcome, Shard
from raysim.engine.numerics import choose_device
from raysim.engine.plan import Plan
from raysim.engine.pool import Pool, sharded
from raysim.fold import fold
from raysim.timeline import Span


class InProcess:
    """Executor over one pool."""

    def __init__(self, plan: Plan) -> None:
        self._pool = Pool(plan, choose_device(plan.experiment.engine.gpus_per_worker), "this process")
        self._jobs: dict[int, Job] = {}
        self._submitted = 0

    def submit(self, job: Job) -> int:
        """Keep the job until its result is asked for."""
        self._submitted += 1
        self._jobs[self._submitted] = job
        return self._submitted

    def result(self, ticket: int) -> Outcome:
        """Run the job's units in order."""
        job = self._jobs.pop(ticket)
        spans: list[Span] = []
        rows: dict[int, list[Tensor]] = {index: [] for index in range(len(job.units))}

        def results() -> Iterator[Any]:
            for index, unit in enumerate(job.units):
                start_s = time.time()
                kept = rows[index] if job.keep else None
                value = self._pool.run(job.kind, job.broadcast, index, unit, kept)
                spans.append(Span("this process", f"{job.kind} {index}", start_s, time.time()))
                yield value

        value = fold(results(), COMBINE[job.kind], len(job.units))
        shards = tuple(Shard(*b, (part,)) for b, part in zip(job.keep, sharded(rows, job.keep), strict=True))
        return Outcome(value, tuple(spans), workers=1, kept=shards)

    def close(self) -> None:
        """Nothing to end."""
