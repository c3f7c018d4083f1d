"""Recovery: what a lost worker, a lost node or a full card had to do is done again, within the budgets."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from raysim.engine import failure
from raysim.engine.on_ray.calls import Call, Gather, Work
from raysim.engine.on_ray.crew import Crew
from raysim.engine.on_ray.jobs import Jobs
from raysim.engine.on_ray.race import Races
from raysim.engine.on_ray.running import Running
from raysim.engine.schedule import NO_WORKER

log = logging.getLogger("raysim")


class Recovery:
    """Carries out what `raysim.engine.failure` decides.

    Every method raises WorkerLostError or ResourceError where a budget is spent: the run is at its end.

    Args:
        crew: who lost something.
        jobs: what it was for.
        races: told who is none any more.
    """

    def __init__(self, crew: Crew, jobs: Jobs, races: Races) -> None:
        self._crew, self._jobs, self._races = crew, jobs, races

    def replace_worker(self, number: int, seen: Sequence[Call], cause: failure.Cause, how: str) -> None:
        """End a worker, put its units back, those it held included, and start another in its place.

        Args:
            number: the worker's.
            seen: calls of it that have ended without reply, and are in flight no more.
            cause: why it is given up.
            how: goes on after "worker 3 ...".
        """
        crew, workers = self._crew, self._crew.workers
        had = {running.ticket: crew.units_of(number, running.ticket, seen) for running in self._jobs}
        node = workers.end(number).node
        for call in (*seen, *crew.calls.forget(number)):
            if isinstance(call, Gather) and call.ticket in had:
                had[call.ticket] |= self._jobs[call.ticket].lose(call.parts)
            elif isinstance(call, Work) and call.copies is not None and not call.void:
                self._races.lose(call)
        if cause == "worker_lost":
            # Its node may be lost with it.
            crew.ask_node(node)
        for ticket, units in had.items():
            self._races.call_off(number, ticket)
            self._put_back(ticket, number, units, cause, f"worker {number} {how}")
        crew.start()

    def redo_sums(self, call: Gather) -> None:
        """Sums that lay on a node went with it."""
        units = self._jobs[call.ticket].lose(call.parts)
        self._put_back(call.ticket, NO_WORKER, units, "worker_lost", f"node {call.node[:8]} was lost")

    def redo_unfinished(self, call: Work, num_done: int) -> None:
        """Memory ran out. The worker lives, and has let go of what it had allocated: the unit is tried once more, then
        those after it."""
        running = self._jobs[call.ticket]
        again = call.units[num_done:]
        what = (
            f"worker {call.worker} ran out of device memory on chunk {again[0]} of round {running.job.broadcast.round}"
        )
        _count_failure("out_of_memory", running, {again[0]}, what)
        self._crew.keep(call, again)
        for unit in again:
            self._crew.give(call.worker, running, (unit,), hand_over=False)

    def _put_back(self, ticket: int, number: int, given: set[int], cause: failure.Cause, how: str) -> None:
        """Put the units that have not arrived back; a worker that is none any more had them."""
        running = self._jobs[ticket]
        lost = given - running.arrived
        if lost:
            what = f"{how} with {len(lost)} chunk(s) of round {running.job.broadcast.round}"
            _count_failure(cause, running, lost, what)
        running.schedule.lose(number, lost)
        self._jobs.end_if_whole(ticket)


def _count_failure(cause: failure.Cause, running: Running, lost: set[int], what: str) -> None:
    """Decide whether the units run again; if so, count and log it, else end the run."""
    before = max(running.failures[cause, unit] for unit in lost)
    decision = failure.decide(cause, before, what)
    log.warning(decision.reason)
    if not decision.retry:
        raise failure.given_up(cause, decision)
    running.retries += 1
    running.failures.update((cause, unit) for unit in lost)
