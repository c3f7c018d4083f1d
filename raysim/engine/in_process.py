"""The executor without Ray: units run in this process, one after another, so breakpoints and profilers just work."""

from __future__ import annotations

import time

from torch import Tensor

from raysim.engine.job import COMBINE, Job, Outcome, Shard
from raysim.engine.plan import Plan
from raysim.engine.pool import Pool, choose_device, sharded
from raysim.server.fold import fold


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
        start = time.perf_counter()
        rows: dict[int, list[Tensor]] = {index: [] for index in range(len(job.units))}
        results = (
            self._pool.run(job.kind, job.broadcast, index, unit, rows[index] if job.keep else None)
            for index, unit in enumerate(job.units)
        )
        value = fold(results, COMBINE[job.kind], len(job.units))
        kept = tuple(Shard(*b, (part,)) for b, part in zip(job.keep, sharded(rows, job.keep), strict=True))
        span_s = time.perf_counter() - start
        return Outcome(value, busy_s=span_s, span_s=span_s, workers=1, kept=kept)

    def close(self) -> None:
        """Nothing to end."""
