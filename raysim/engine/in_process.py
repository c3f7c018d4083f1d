"""The executor without Ray: units run in this process, one after another, so breakpoints and profilers just work."""

from __future__ import annotations

import time

from raysim.engine.job import COMBINE, Job, Outcome
from raysim.engine.plan import Plan, choose_device
from raysim.engine.pool import Pool
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
        results = (self._pool.run(job.kind, job.broadcast, index, unit) for index, unit in enumerate(job.units))
        value = fold(results, COMBINE[job.kind], len(job.units))
        span_s = time.perf_counter() - start
        return Outcome(value, busy_s=span_s, span_s=span_s, workers=1)

    def close(self) -> None:
        """Nothing to end."""
