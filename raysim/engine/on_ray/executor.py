"""The executor on Ray: pools pull units, add up what they trained, and send one sum when there is no more to pull."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import ray
from ray import exceptions

from raysim.engine import failure, wire
from raysim.engine.job import COMBINE, Job, Outcome, Stopped
from raysim.engine.on_ray.client_pool import ClientPool
from raysim.engine.on_ray.cluster import Placement, wait_for_pools
from raysim.engine.plan import Plan
from raysim.engine.schedule import Schedule
from raysim.errors import RaysimError, WorkerLostError
from raysim.server.fold import TreeFold

log = logging.getLogger("raysim")

DEPTH = 2
"""Calls a worker has at a time: one running, one waiting, so that it never waits for the driver."""

STOP_POLL_S = 0.5
"""How long a waiting driver takes to notice that it was asked to stop."""

HOLD_S = 2.0
"""A worker hands over its sums after this much work, so that losing it costs no more than that."""


@dataclass(frozen=True)
class _Call:
    """A call in flight. A collect call covers the units whose sums it brings."""

    worker: int
    ticket: int
    what: Literal["run", "collect"]
    units: tuple[int, ...]


@dataclass
class _Worker:
    actor: Any
    in_flight: int = 0
    held_s: float = 0.0
    held: dict[int, list[int]] = field(default_factory=dict)
    """Units by job that were given to the worker and are not covered by a collect call."""


@dataclass
class _Running:
    job: Job
    schedule: Schedule
    tree: TreeFold[Any]
    reference: Any
    start_s: float
    bytes_down: int
    busy_s: float = 0.0
    bytes_up: int = 0
    retries: int = 0
    failures: Counter[int] = field(default_factory=Counter)
    arrived: set[int] = field(default_factory=set)
    """Units whose sums are in the tree."""


class OnRay:
    """Executor over ClientPool actors pinned to `placement`; must be made where the actors' owner shall live.

    Setting `stop`, from any thread, makes a waiting `result` raise `Stopped`.
    """

    def __init__(self, plan: Plan, placement: Placement) -> None:
        self._plan_reference = ray.put(plan)
        self._placement = placement
        self._threads = plan.experiment.engine.threads
        self._numbers = itertools.count()
        self._workers: dict[int, _Worker] = {}
        self._calls: dict[Any, _Call] = {}
        self._jobs: dict[int, _Running] = {}
        self._done: dict[int, Outcome] = {}
        self._tickets = itertools.count(1)
        self.stop = threading.Event()
        for _ in range(placement.workers):
            self._start_worker()
        try:
            self.started = wait_for_pools([w.actor.ready.remote() for w in self._workers.values()], placement)
        except BaseException:
            self.close()
            raise

    def submit(self, job: Job) -> int:
        """Put the broadcast where every node can map it, and give the workers their first units."""
        ticket = next(self._tickets)
        packed = wire.pack(job.broadcast)
        self._jobs[ticket] = _Running(
            job=job,
            schedule=Schedule(job.costs, list(self._workers)),
            tree=TreeFold(len(job.units), COMBINE[job.kind]),
            reference=ray.put(packed),
            start_s=time.perf_counter(),
            bytes_down=wire.num_bytes(packed),
        )
        self._give_out()
        return ticket

    def result(self, ticket: int) -> Outcome:
        """Wait for the job, serving every other job meanwhile."""
        while ticket not in self._done:
            if self.stop.is_set():
                raise Stopped
            ready, _ = ray.wait(list(self._calls), num_returns=1, timeout=STOP_POLL_S)
            for reference in ready:
                self._settle(reference)
            self._give_out()
        return self._done.pop(ticket)

    def close(self) -> None:
        """End the pools."""
        self._calls.clear()
        while self._workers:
            _, worker = self._workers.popitem()
            ray.kill(worker.actor)

    def _start_worker(self) -> None:
        number = next(self._numbers)
        place = self._placement
        # raysim alone retries: Ray's own retry would run a method again on a fresh actor, unseen and uncounted.
        options = ray.remote(ClientPool).options(
            num_cpus=place.cpus, num_gpus=place.gpus, max_restarts=0, max_task_retries=0
        )
        self._workers[number] = _Worker(options.remote(self._plan_reference, number, place.gpus, self._threads))

    def _give_out(self) -> None:
        """Fill every worker's queue; where a job has nothing left to give, ask for its sums."""
        for ticket, running in self._jobs.items():
            progress = True
            while progress and len(running.schedule):
                progress = False
                for number, worker in self._workers.items():
                    if worker.in_flight < DEPTH and (unit := running.schedule.take(number)) is not None:
                        self._run(number, worker, ticket, running, unit)
                        progress = True
            if not len(running.schedule):
                for number, worker in self._workers.items():
                    self._collect(number, worker, ticket)

    def _run(self, number: int, worker: _Worker, ticket: int, running: _Running, unit: int) -> None:
        job = running.job
        reference = worker.actor.run.remote(ticket, len(job.units), job.kind, running.reference, unit, job.units[unit])
        self._calls[reference] = _Call(number, ticket, "run", (unit,))
        worker.held.setdefault(ticket, []).append(unit)
        worker.in_flight += 1

    def _collect(self, number: int, worker: _Worker, ticket: int) -> None:
        if units := worker.held.pop(ticket, None):
            reference = worker.actor.collect.remote(ticket)
            self._calls[reference] = _Call(number, ticket, "collect", tuple(units))
            worker.held_s = 0.0

    def _settle(self, reference: Any) -> None:
        call = self._calls.pop(reference, None)
        if call is None:
            return
        try:
            value = ray.get(reference)
        except exceptions.RayActorError as error:
            self._lost(call, error)
            return
        except exceptions.RayTaskError as error:
            self._fail(error)
        running = self._jobs[call.ticket]
        worker = self._workers[call.worker]
        if call.what == "run":
            worker.in_flight -= 1
            worker.held_s += value
            running.busy_s += value
            if worker.held_s > HOLD_S:
                self._collect(call.worker, worker, call.ticket)
        else:
            running.arrived.update(call.units)
            for (level, index), packed in value:
                running.bytes_up += wire.num_bytes(packed)
                running.tree.put(wire.unpack(packed), index, level)
        # Replies are settled in any order: the sums may be whole before the last call has said how long it took.
        if running.tree.complete and all(other.ticket != call.ticket for other in self._calls.values()):
            self._finish(call.ticket, running)

    def _finish(self, ticket: int, running: _Running) -> None:
        del self._jobs[ticket]
        self._done[ticket] = Outcome(
            value=running.tree.value,
            busy_s=running.busy_s,
            span_s=time.perf_counter() - running.start_s,
            workers=len(self._workers),
            retries=running.retries,
            bytes_down=running.bytes_down,
            bytes_up=running.bytes_up,
        )

    def _fail(self, error: exceptions.RayTaskError) -> None:
        self.close()
        cause = getattr(error, "cause", None)
        if isinstance(cause, RaysimError):
            raise cause from None
        raise error

    def _lost(self, seen: _Call, error: exceptions.RayActorError) -> None:
        """Put a dead worker's units back, those it held included, and start another in its place."""
        number = seen.worker
        if getattr(error, "actor_init_failed", False):
            self.close()
            raise error
        worker = self._workers.pop(number)
        # It may only be out of reach: ended for certain, nothing of it can be counted twice.
        ray.kill(worker.actor)
        units: dict[int, set[int]] = {ticket: set(held) for ticket, held in worker.held.items()}
        units.setdefault(seen.ticket, set()).update(seen.units)
        for reference, call in list(self._calls.items()):
            if call.worker == number:
                del self._calls[reference]
                units.setdefault(call.ticket, set()).update(call.units)
        for ticket, given in units.items():
            if lost := given - self._jobs[ticket].arrived:
                self._run_again(number, ticket, lost)
        self._start_worker()

    def _run_again(self, number: int, ticket: int, lost: set[int]) -> None:
        running = self._jobs[ticket]
        before = max(running.failures[unit] for unit in lost)
        what = f"worker {number} died with {len(lost)} chunk(s) of round {running.job.broadcast.round}"
        decision = failure.decide("worker_lost", before, what)
        log.warning(decision.reason)
        if not decision.retry:
            self.close()
            raise WorkerLostError(decision.reason)
        running.retries += 1
        running.failures.update(lost)
        running.schedule.give_back(lost, number)
