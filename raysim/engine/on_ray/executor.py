"""The executor on Ray: pools pull units, add up what they trained, and send one sum when there is no more to pull."""

from __future__ import annotations

import threading

import ray
from ray import exceptions

from raysim.engine.job import Job, Outcome, Stopped
from raysim.engine.on_ray.cluster import Placement, wait_for_pools
from raysim.engine.on_ray.crew import Crew
from raysim.engine.on_ray.give_out import give_out
from raysim.engine.on_ray.jobs import Jobs
from raysim.engine.on_ray.lateness import late
from raysim.engine.on_ray.pace import Pace
from raysim.engine.on_ray.race import Races
from raysim.engine.on_ray.recovery import Recovery
from raysim.engine.on_ray.settle import Settling
from raysim.engine.on_ray.whereabouts import listed
from raysim.engine.on_ray.workers import Begun, Workers, begin
from raysim.engine.plan import Plan
from raysim.errors import RaysimError

MANY_CALLS = 64
"""With more in flight, all replies that are there are settled together."""

POLL_S = 0.5
"""How often a waiting driver looks up: whether it was asked to stop, whether a call is late."""


class OnRay:
    """Executor over ClientPool actors pinned to `placement`.

    Args:
        plan: the run.
        placement: how many workers, and each one's share of a node.
        begun: workers that somebody else has started, and owns; None starts them here.

    Setting `stop`, from any thread, makes a waiting `result` raise `Stopped`.
    """

    def __init__(self, plan: Plan, placement: Placement, begun: Begun | None = None) -> None:
        workers = Workers(begun or begin(plan, placement), placement, plan.experiment.engine.threads)
        self._crew = Crew(workers)
        self._jobs, self._pace, self._races = Jobs(self._crew), Pace(), Races(self._crew)
        self._recovery = Recovery(self._crew, self._jobs, self._races)
        self._settling = Settling(self._crew, self._jobs, self._pace, self._races, self._recovery)
        self.stop = threading.Event()
        for _ in range(placement.workers):
            self._crew.start()
        starting = list(self._crew.calls)
        try:
            places = wait_for_pools(starting, placement)
        except BaseException:
            self.close()
            raise
        for reference in starting:
            self._settling.settle(reference)
        self.started = listed(places, workers.nodes)

    def submit(self, job: Job) -> int:
        """Put the broadcast where every node can map it, and give the workers their first units."""
        for _ in range(self._crew.workers.lacking()):
            self._crew.start()
        ticket = self._jobs.begin(job)
        give_out(self._jobs, self._crew, self._pace)
        return ticket

    def result(self, ticket: int) -> Outcome:
        """Wait for the job, serving every other job meanwhile."""
        while (outcome := self._jobs.take(ticket)) is None:
            if self.stop.is_set():
                raise Stopped
            try:
                self._serve()
            except (RaysimError, exceptions.RayError):
                self.close()
                raise
        return outcome

    def close(self) -> None:
        """End the pools."""
        self._crew.close()

    def _serve(self) -> None:
        """Wait for a reply, or a moment, and do what follows."""
        calls = list(self._crew.calls)
        ready, _ = ray.wait(calls, num_returns=1, timeout=POLL_S)
        if len(calls) > MANY_CALLS:
            # Giving out looks at every worker: once for all that have replied.
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        for reference in ready:
            self._settling.settle(reference)
        if not ready:
            self._look_for_late_calls()
            self._crew.workers.check_any()
        give_out(self._jobs, self._crew, self._pace)

    def _look_for_late_calls(self) -> None:
        """Have what takes too long done by a worker that has nothing to do; end a worker that will never reply."""
        for number, running_s, hung in late(self._crew, self._pace):
            if hung:
                self._recovery.replace_worker(number, [], "hung", f"has not replied for {running_s:.0f} s")
                continue
            for running in self._jobs:
                self._races.begin(number, running)
