"""The executor on Ray: pools pull units, add up what they trained, and send one sum when there is no more to pull."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NoReturn

import ray
from ray import exceptions

from raysim.engine import failure, wire
from raysim.engine.job import COMBINE, Job, Outcome, Shard, Stopped
from raysim.engine.on_ray.client_pool import ClientPool, Worked
from raysim.engine.on_ray.cluster import Placement, wait_for_pools
from raysim.engine.on_ray.data_on_nodes import travelling
from raysim.engine.plan import Plan
from raysim.engine.schedule import Schedule
from raysim.errors import RaysimError, ResourceError, WorkerLostError
from raysim.fold import TreeFold
from raysim.timeline import Span

log = logging.getLogger("raysim")

NO_JOB = 0
"""The ticket of calls that only ask whether a worker has started."""

DEPTH = 2
"""Calls a worker has at a time: one running, one waiting, so that it never waits for the driver."""

CALL_S = 0.01
"""Short units share a call until they are expected to take this long: a call itself costs about a millisecond."""

STOP_POLL_S = 0.5
"""How long a waiting driver takes to notice that it was asked to stop."""

S_PER_BYTE = 2e-9
"""What a sum costs to write, map, copy and add, in seconds a byte: the same kind of memory traffic everywhere."""

INLINE_BYTES = 64 << 10
"""A broadcast up to this size travels inside the first call to a worker: the object store would cost a millisecond."""

HOLD_S = 2.0
"""A worker hands over its sums after this much work, so that losing it costs no more than that."""


@dataclass(frozen=True)
class _Call:
    """A call in flight: the units that it carries out, and the units whose sums it hands over.

    kept: references to the updates of the covered units, one for each shard.
    """

    worker: int
    ticket: int
    units: tuple[int, ...] = ()
    covers: tuple[int, ...] = ()
    kept: tuple[Any, ...] = ()


@dataclass
class _Worker:
    actor: Any
    ready: bool = False
    """Whether it runs: a replacement may have to wait for resources, and is given nothing until it has them."""
    in_flight: int = 0
    held_s: float = 0.0
    held: dict[int, list[int]] = field(default_factory=dict)
    """Units by job that were given to the worker and whose sums no call was asked for yet."""
    told: set[int] = field(default_factory=set)
    """Jobs whose broadcast the worker has, or will have when the calls before are done."""


@dataclass
class _Running:
    job: Job
    schedule: Schedule
    tree: TreeFold[Any]
    broadcast: Any
    """Packed, or a reference to it in the object store."""
    bytes_down: int
    put_s: float
    fold_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    bytes_up: int = 0
    retries: int = 0
    failures: Counter[int] = field(default_factory=Counter)
    arrived: set[int] = field(default_factory=set)
    """Units whose sums are in the tree."""
    kept: list[tuple[Any, ...]] = field(default_factory=list)
    """References to the arrived units' updates, one per shard. As results of calls they are the driver's own: they
    outlive the worker that made them."""
    done_cost: float = 0.0
    busy_s: float = 0.0

    def least_to_take(self) -> float:
        """The cost that must be left in another worker's region before a free worker takes from it.

        Less than that takes no longer than sending and adding the two more records that it causes, of 12 bytes a number
        (float64 sums, float32 unit updates) where the model has 4.
        """
        sums_s = 2 * 3 * self.bytes_down * S_PER_BYTE
        return sums_s * self.done_cost / self.busy_s if self.busy_s else 0.0


class OnRay:
    """Executor over ClientPool actors pinned to `placement`; must be made where the actors' owner shall live.

    Setting `stop`, from any thread, makes a waiting `result` raise `Stopped`.
    """

    def __init__(self, plan: Plan, placement: Placement) -> None:
        self._plan_reference = ray.put(travelling(plan))
        self._placement = placement
        self._threads = plan.experiment.engine.threads
        self._numbers = itertools.count()
        self._workers: dict[int, _Worker] = {}
        self._calls: dict[Any, _Call] = {}
        self._jobs: dict[int, _Running] = {}
        self._done: dict[int, Outcome] = {}
        self._tickets = itertools.count(1)
        self._seconds: dict[str, float] = {}
        """By kind: seconds per cost, as last measured."""
        self.stop = threading.Event()
        for _ in range(placement.workers):
            self._start_worker()
        try:
            self.started = wait_for_pools(list(self._calls), placement)
        except BaseException:
            self.close()
            raise
        for reference in list(self._calls):
            self._settle(reference)

    def submit(self, job: Job) -> int:
        """Put the broadcast where every node can map it, and give the workers their first units."""
        start_s = time.perf_counter()
        ticket = next(self._tickets)
        packed = wire.pack(job.broadcast)
        num_bytes = wire.num_bytes(packed)
        self._jobs[ticket] = _Running(
            job=job,
            schedule=Schedule(job.costs, list(self._workers)),
            tree=TreeFold(len(job.units), COMBINE[job.kind]),
            broadcast=packed if num_bytes <= INLINE_BYTES else ray.put(packed),
            bytes_down=num_bytes,
            put_s=time.perf_counter() - start_s,
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
        actor: Any = options.remote(self._plan_reference, number, place.gpus, self._threads)
        self._workers[number] = _Worker(actor)
        self._calls[actor.ready.remote()] = _Call(number, NO_JOB)

    def _give_out(self) -> None:
        """Fill every worker's queue; where a job has nothing left to give, ask for its sums."""
        for ticket, running in self._jobs.items():
            progress = True
            while progress and len(running.schedule):
                progress = False
                given = {number: self._take(number, running) for number in self._workers}
                for number, units in given.items():
                    if units:
                        self._call(number, ticket, units, hand_over=not len(running.schedule))
                        progress = True
            if not len(running.schedule):
                for number, worker in self._workers.items():
                    if worker.held.get(ticket):
                        self._call(number, ticket, (), hand_over=True)

    def _take(self, number: int, running: _Running) -> tuple[int, ...]:
        """Units for one more call of the worker: one, or several short ones."""
        worker, job = self._workers[number], running.job
        taken: list[int] = []
        if not worker.ready or worker.in_flight >= DEPTH:
            return ()
        expected_s = 0.0
        while not taken or expected_s < CALL_S:
            # Only the first unit of a call may come from another worker: it may be idle, and what follows is its own.
            least = math.inf if taken else running.least_to_take()
            unit = running.schedule.take(number, least)
            if unit is None:
                break
            taken.append(unit)
            expected_s += job.costs[unit] * self._seconds[job.kind] if job.kind in self._seconds else CALL_S
        return tuple(taken)

    def _call(self, number: int, ticket: int, units: tuple[int, ...], hand_over: bool) -> None:
        worker, running = self._workers[number], self._jobs[ticket]
        job = running.job
        handed = len(job.keep) if hand_over else 0
        work = worker.actor.work.options(num_returns=1 + handed) if handed else worker.actor.work
        made = work.remote(
            ticket,
            len(job.units),
            job.kind,
            running.broadcast if units and ticket not in worker.told else None,
            [(unit, job.units[unit]) for unit in units],
            hand_over,
            job.keep,
        )
        if units:
            worker.told.add(ticket)
        reference, *kept = made if handed else (made,)
        held = worker.held.setdefault(ticket, [])
        held.extend(units)
        worker.in_flight += bool(units)
        covers: tuple[int, ...] = ()
        if hand_over:
            covers, worker.held_s = tuple(held), 0.0
            held.clear()
            # The worker lets go of the broadcast with its sums; should there be more units after all, it is told again.
            worker.told.discard(ticket)
        self._calls[reference] = _Call(number, ticket, units, covers, tuple(kept))

    def _settle(self, reference: Any) -> None:
        call = self._calls.pop(reference, None)
        if call is None:
            return
        try:
            reply = ray.get(reference)
        except exceptions.RayActorError as error:
            self._lost(call, error)
            return
        except exceptions.RayTaskError as error:
            self._fail(error)
        worker = self._workers[call.worker]
        if call.ticket == NO_JOB:
            worker.ready = True
            return
        running = self._jobs[call.ticket]
        worker.in_flight -= bool(call.units)
        self._count_time(call, reply, running, worker)
        if reply.out_of_memory:
            self._out_of_memory(call, len(reply.done))
            return
        if call.covers:
            start_s = time.perf_counter()
            if call.kept:
                running.kept.append(call.kept)
            for node, packed in reply.sums:
                # What came, not what was asked for: a unit that ran out of memory before this call is not in it.
                running.arrived.update(range(*node))
                running.bytes_up += wire.num_bytes(packed)
                running.tree.put(wire.unpack(packed), node)
            running.fold_s += time.perf_counter() - start_s
        elif worker.held_s > HOLD_S:
            self._call(call.worker, call.ticket, (), hand_over=True)
        self._finish_if_whole(call.ticket)

    def _count_time(self, call: _Call, reply: Worked, running: _Running, worker: _Worker) -> None:
        job = running.job
        for unit, (start_s, end_s) in zip(call.units, reply.done, strict=False):
            running.spans.append(Span(f"worker {call.worker}", f"{job.kind} {unit}", start_s, end_s))
            running.busy_s += end_s - start_s
            running.done_cost += job.costs[unit]
            if not call.covers:
                worker.held_s += end_s - start_s
        if running.done_cost:
            self._seconds[job.kind] = running.busy_s / running.done_cost

    def _finish_if_whole(self, ticket: int) -> None:
        # Replies are settled in any order: the sums may be whole before the last call has said how long it took.
        running = self._jobs[ticket]
        if not running.tree.complete or any(call.ticket == ticket for call in self._calls.values()):
            return
        del self._jobs[ticket]
        self._done[ticket] = Outcome(
            value=running.tree.value,
            spans=tuple(running.spans),
            workers=sum(worker.ready for worker in self._workers.values()),
            put_s=running.put_s,
            fold_s=running.fold_s,
            retries=running.retries,
            bytes_down=running.bytes_down,
            bytes_up=running.bytes_up,
            kept=tuple(
                Shard(*bounds, parts)
                for bounds, parts in zip(running.job.keep, zip(*running.kept, strict=True), strict=True)
            ),
        )

    def _fail(self, error: exceptions.RayTaskError) -> NoReturn:
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
        units: dict[int, set[int]] = {ticket: set(worker.held.get(ticket, ())) for ticket in self._jobs}
        calls = [seen, *(call for call in self._calls.values() if call.worker == number)]
        self._calls = {reference: call for reference, call in self._calls.items() if call.worker != number}
        for call in calls:
            if call.ticket != NO_JOB:
                units[call.ticket].update(call.units, call.covers)
        for ticket, given in units.items():
            running = self._jobs[ticket]
            lost = given - running.arrived
            if lost:
                what = f"worker {number} died with {len(lost)} chunk(s) of round {running.job.broadcast.round}"
                self._count_failure("worker_lost", running, lost, what)
            running.schedule.lose(number, lost)
        for ticket in units:
            self._finish_if_whole(ticket)
        self._start_worker()

    def _out_of_memory(self, call: _Call, num_done: int) -> None:
        """The worker lives, and has let go of what it had allocated: the chunk is tried once more, then the others."""
        running = self._jobs[call.ticket]
        worker = self._workers[call.worker]
        again = call.units[num_done:]
        what = (
            f"worker {call.worker} ran out of device memory on chunk {again[0]} of round {running.job.broadcast.round}"
        )
        self._count_failure("out_of_memory", running, {again[0]}, what)
        # Nothing was handed over: what the call was to cover is still held there.
        held = [unit for unit in (*worker.held.get(call.ticket, ()), *call.covers) if unit not in again]
        worker.held[call.ticket] = held
        for unit in again:
            self._call(call.worker, call.ticket, (unit,), hand_over=False)

    def _count_failure(self, cause: failure.Cause, running: _Running, lost: set[int], what: str) -> None:
        """Decide whether the units run again; if so, count and log it, else end the run."""
        before = max(running.failures[unit] for unit in lost)
        decision = failure.decide(cause, before, what)
        log.warning(decision.reason)
        if not decision.retry:
            self.close()
            raise (
                WorkerLostError(decision.reason)
                if cause == "worker_lost"
                else ResourceError(
                    f"{decision.reason}. Lower engine.chunk_size, or give each worker a larger share of the card "
                    f"(engine.gpus_per_worker)."
                )
            )
        running.retries += 1
        running.failures.update(lost)
