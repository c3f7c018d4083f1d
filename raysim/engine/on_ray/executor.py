"""The executor on Ray: pools pull units, add up what they trained, and send one sum when there is no more to pull."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray import exceptions

from raysim.engine import failure, wire
from raysim.engine.job import COMBINE, Job, Outcome, Stopped, UpdatesLost
from raysim.engine.on_ray import lateness
from raysim.engine.on_ray.calls import Call, Calls, Gather, Start, Work, WorkKind
from raysim.engine.on_ray.client_pool import Worked
from raysim.engine.on_ray.cluster import WAIT_FOR_RESOURCES_S, Placement, no_worker, wait_for_pools
from raysim.engine.on_ray.running import Kept, Left, Running
from raysim.engine.on_ray.whereabouts import listed
from raysim.engine.on_ray.workers import Begun, Worker, Workers, begin
from raysim.engine.plan import Plan
from raysim.engine.schedule import NOBODY, Schedule
from raysim.errors import RaysimError, ResourceError
from raysim.fold import TreeFold

log = logging.getLogger("raysim")

CALL_S = 0.01
"""Short units share a call until they are expected to take this long: a call itself costs about a millisecond."""

MANY_CALLS = 64
"""With more in flight, all replies that are there are settled together."""

POLL_S = 0.5
"""How often a waiting driver looks up: whether it was asked to stop, whether a call is late."""

INLINE_BYTES = 64 << 10
"""A broadcast up to this size travels inside the first call to a worker: the object store would cost a millisecond."""

HAND_OVER_S = 10.0
"""What a call without units is expected to take, however large the sums and the updates are."""

HOLD_S = 2.0
"""A worker hands over its sums after this much work, so that losing it costs no more than that."""


class OnRay:
    """Executor over ClientPool actors pinned to `placement`.

    Args:
        plan: the run.
        placement: how many workers, and each one's share of a node.
        begun: workers that somebody else has started, and owns; None starts them here.

    Setting `stop`, from any thread, makes a waiting `result` raise `Stopped`.
    """

    def __init__(self, plan: Plan, placement: Placement, begun: Begun | None = None) -> None:
        self._workers = Workers(begun or begin(plan, placement), placement, plan.experiment.engine.threads)
        self._calls = Calls()
        self._jobs: dict[int, Running] = {}
        self._done: dict[int, Outcome] = {}
        self._tickets = itertools.count(1)
        self._seconds: dict[WorkKind, float] = {}
        """Seconds per cost, as last measured."""
        self._copied: set[tuple[int, int]] = set()
        """Late workers, and the jobs of which somebody else does their units too."""
        self._seen_s = time.monotonic()
        """When some worker was last there."""
        self.stop = threading.Event()
        for _ in range(placement.workers):
            self._start_worker()
        try:
            places = wait_for_pools(list(self._calls), placement)
        except BaseException:
            self.close()
            raise
        for reference in list(self._calls):
            self._settle(reference)
        self.started = listed(places, self._workers.nodes)

    def submit(self, job: Job) -> int:
        """Put the broadcast where every node can map it, and give the workers their first units."""
        for _ in range(self._workers.lacking()):
            self._start_worker()
        start_s = time.perf_counter()
        ticket = next(self._tickets)
        packed = wire.pack(job.broadcast)
        num_bytes = wire.num_bytes(packed)
        inline = num_bytes <= INLINE_BYTES
        self._jobs[ticket] = Running(
            job=job,
            schedule=Schedule(job.costs, self._workers.ready()),
            tree=TreeFold(len(job.units), COMBINE[job.kind]),
            broadcast=packed if inline else ray.put(packed),
            num_bytes=num_bytes,
            inline=inline,
            put_s=time.perf_counter() - start_s,
        )
        self._give_out()
        return ticket

    def result(self, ticket: int) -> Outcome:
        """Wait for the job, serving every other job meanwhile."""
        while ticket not in self._done:
            if self.stop.is_set():
                raise Stopped
            calls = list(self._calls)
            ready, _ = ray.wait(calls, num_returns=1, timeout=POLL_S)
            if len(calls) > MANY_CALLS:
                # Giving out looks at every worker: once for all that have replied.
                ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
            for reference in ready:
                self._settle(reference)
            if not ready:
                self._look_for_late_calls()
                self._look_for_workers()
            self._give_out()
        return self._done.pop(ticket)

    def close(self) -> None:
        """End the pools."""
        self._calls.clear()
        self._workers.close()

    def _start_worker(self) -> None:
        number, reference = self._workers.start()
        self._calls[reference] = Start(number)

    # Giving out

    def _give_out(self) -> None:
        """Fill every worker's queue; where a job has nothing left to give, ask for its sums."""
        for ticket, running in self._jobs.items():
            progress = True
            while progress and len(running.schedule):
                progress = False
                given = {number: self._take(worker, number, running) for number, worker in self._workers.items()}
                for number, units in given.items():
                    if units:
                        self._call(number, ticket, units, hand_over=not len(running.schedule))
                        progress = True
            if not len(running.schedule):
                for number, worker in self._workers.items():
                    if worker.held.get(ticket):
                        self._call(number, ticket, (), hand_over=True)
                self._gather(ticket, running)

    def _take(self, worker: Worker, number: int, running: Running) -> tuple[int, ...]:
        """Units for one more call of the worker: one, or several short ones."""
        if not worker.is_free:
            return ()
        taken: list[int] = []
        expected_s = 0.0
        while not taken or expected_s < CALL_S:
            # Only the first unit of a call may come from another worker: it may be idle, and what follows is its own.
            unit = running.schedule.take(number, math.inf if taken else running.least_to_take())
            if unit is None:
                break
            taken.append(unit)
            expected_s += self._expected_s(running.work, running.cost((unit,))) or CALL_S
        return tuple(taken)

    def _expected_s(self, work: WorkKind, cost: float) -> float | None:
        """None where nothing of the kind was measured yet."""
        return cost * self._seconds[work] if work in self._seconds else None

    def _call(self, number: int, ticket: int, units: tuple[int, ...], hand_over: bool) -> None:
        worker, running = self._workers[number], self._jobs[ticket]
        worker.held.setdefault(ticket, []).extend(units)
        covers: tuple[int, ...] = ()
        if hand_over:
            covers, worker.held_s = tuple(worker.held.pop(ticket)), 0.0
        self._send(Work(number, ticket, units, covers), running, ticket, hand_over)

    def _send(self, call: Work, running: Running, name: int, hand_over: bool) -> None:
        """Send a call to its worker, which knows the job by `name`."""
        worker, job = self._workers[call.worker], running.job
        # What is added up on a node first, stays there; a small object would come to the driver with the reply anyway.
        apart = hand_over and not running.inline and len(self._workers.of_node(worker.node)) > 1
        apart = apart and worker.node != self._workers.nodes[0]
        more = (apart + len(job.keep)) if hand_over else 0
        work = worker.actor.work.options(num_returns=1 + more) if more else worker.actor.work
        new = bool(call.units) and name not in worker.told
        made = work.remote(
            name,
            len(job.units),
            job.kind,
            running.broadcast if new else None,
            [(unit, job.units[unit]) for unit in call.units],
            hand_over,
            job.keep,
            apart,
        )
        if new:
            running.sent(worker.node)
            worker.told.add(name)
        reference, *others = made if more else (made,)
        if hand_over:
            # The worker lets go of the broadcast with its sums; should there be more units after all, it is told again.
            worker.told.discard(name)
        if not worker.in_flight:
            worker.since_s = time.monotonic()
        worker.in_flight += bool(call.units)
        sums = others.pop(0) if apart else None
        cost = running.cost(call.units)
        self._calls[reference] = replace(call, kept=tuple(others), sums=sums, work=running.work, cost=cost)

    def _gather(self, ticket: int, running: Running) -> None:
        """Where nothing more of the job comes from a node, have what lies there added up and sent."""
        if not running.left:
            return
        busy = {self._workers[call.worker].node for call in self._calls.of_job(ticket) if isinstance(call, Work)}
        for node in [node for node in running.left if node not in busy]:
            here, left = self._workers.of_node(node), running.left.pop(node)
            parts = tuple(part for one in left for part in one.parts)
            if len(left) > 1 and here:
                number = min(here, key=lambda number: self._workers[number].in_flight)
                combine = self._workers[number].actor.combine
                made = combine.remote(len(running.job.units), running.job.kind, *(one.reference for one in left))
                self._calls[made] = Gather(node, number, ticket, parts)
            else:
                for one in left:
                    self._calls[one.reference] = Gather(node, None, ticket, one.parts)

    # Settling

    def _settle(self, reference: Any) -> None:
        call = self._calls.pop(reference)
        if call is None or (isinstance(call, Gather) and call.ticket not in self._jobs):
            return
        try:
            reply = ray.get(reference)
        except exceptions.RayActorError as error:
            self._unreachable(call, error)
            return
        except exceptions.RayTaskError as error:
            # First, because Ray makes it of the class of its cause as well.
            if isinstance(call, Gather):
                self._gone(call)
            else:
                self._fail(call, error)
            return
        except exceptions.ObjectLostError:
            if isinstance(call, Gather):
                self._gone(call)
            else:
                self._lost(call.worker, [call], "worker_lost", "went with its node")
            return
        match call:
            case Start():
                self._workers.is_ready(call.worker, reply)
            case Gather():
                running = self._jobs[call.ticket]
                self._arrive(running, reply, call.node)
                self._finish_if_whole(call.ticket)
            case Work():
                self._worked(call, reply)

    def _worked(self, call: Work, reply: Worked) -> None:
        worker = self._workers[call.worker]
        worker.in_flight -= bool(call.units)
        worker.since_s = time.monotonic()
        failed_copy = call.copies is not None and reply.out_of_memory
        if failed_copy:
            worker.actor.drop.remote(-call.ticket)
        if call.void or failed_copy:
            self._came_back(call.worker)
            return
        running = self._jobs[call.ticket]
        took_s = running.done(call.worker, call.units, reply.done)
        if running.s_per_cost is not None:
            self._seconds[running.work] = running.s_per_cost
        if reply.out_of_memory:
            self._out_of_memory(call, running, len(reply.done))
            return
        self._settle_race(call)
        if call.kept:
            running.kept.append(Kept(frozenset(call.covers), call.kept))
        if call.sums is not None:
            running.left.setdefault(worker.node, []).append(Left(reply.parts, call.sums))
        elif call.covers or reply.sums:
            # Sums may come though none were to be covered: of a call before that ran out of memory.
            self._arrive(running, reply.sums, worker.node)
        else:
            worker.held_s += took_s
            if worker.held_s > HOLD_S and worker.held.get(call.ticket):
                self._call(call.worker, call.ticket, (), hand_over=True)
        self._finish_if_whole(call.ticket)

    def _arrive(self, running: Running, sums: Any, node: str) -> None:
        start_s = time.perf_counter()
        running.arrive(sums, node)
        running.fold_s += time.perf_counter() - start_s

    def _finish_if_whole(self, ticket: int) -> None:
        # Replies are settled in any order: the sums may be whole before the last call has said how long it took.
        running = self._jobs[ticket]
        if not running.tree.complete or any(self._calls.of_job(ticket)):
            return
        del self._jobs[ticket]
        self._done[ticket] = running.outcome(max(1, len(self._workers.ready())), self._workers.nodes)

    # What goes wrong

    def _fail(self, call: Start | Work, error: exceptions.RayTaskError) -> None:
        cause = getattr(error, "cause", None)
        if isinstance(call, Work):
            self._workers[call.worker].in_flight -= bool(call.units)
            self._workers[call.worker].since_s = time.monotonic()
            if call.copies is not None:
                # It did the units by another name, of which a dropped job does not know.
                self._workers[call.worker].actor.drop.remote(-call.ticket)
            if call.void:
                self._came_back(call.worker)
                return
            if isinstance(cause, exceptions.ObjectLostError):
                for number in self._workers:
                    self._void(number, call.ticket)
                raise UpdatesLost(self._jobs.pop(call.ticket).job.broadcast.round) from None
        self.close()
        if isinstance(cause, RaysimError):
            raise cause from None
        raise error

    def _void(self, number: int, ticket: int) -> None:
        """What the worker has of the job, and will have, is not wanted."""
        worker = self._workers[number]
        self._calls.void(number, ticket)
        worker.held.pop(ticket, None)
        worker.told.discard(ticket)
        worker.actor.drop.remote(ticket)
        self._came_back(number)

    def _came_back(self, number: int) -> None:
        """A worker that still is about what nobody wants, or has yet to say that it is there, is given nothing else."""
        calls = self._calls.of_worker(number)
        late = any(isinstance(call, Start) or (isinstance(call, Work) and call.void) for call in calls)
        worker = self._workers[number]
        worker.ready = bool(worker.node) and not late

    def _settle_race(self, call: Work) -> None:
        """Of a late worker and the one that does its units too, the first to reply is the one that counts."""
        if call.copies is not None:
            log.warning("worker %d was first with what worker %d is late with", call.worker, call.copies)
            self._copied.discard((call.copies, call.ticket))
            # It may have been given more since it was copied.
            others = self._has(call.copies, call.ticket) - set(call.covers)
            self._void(call.copies, call.ticket)
            self._jobs[call.ticket].schedule.lose(call.copies, others)
        elif (call.worker, call.ticket) in self._copied:
            self._void_copies(call.worker, call.ticket)

    def _void_copies(self, number: int, ticket: int) -> None:
        self._copied.discard((number, ticket))
        self._calls.void_copies(number, ticket)

    def _look_for_late_calls(self) -> None:
        """Have what takes too long done by a worker that has nothing to do; end a worker that will never reply."""
        now_s = time.monotonic()
        for number, worker in self._workers.items():
            first = next((call for call in self._calls.of_worker(number) if isinstance(call, Work)), None)
            if first is None:
                continue
            running_s = now_s - worker.since_s
            expected_s = self._expected_s(first.work, first.cost) if first.units else HAND_OVER_S
            if lateness.is_hung(running_s, expected_s):
                self._lost(number, [], "hung", f"has not replied for {running_s:.0f} s")
            elif lateness.is_slow(running_s, expected_s):
                for ticket in self._jobs:
                    self._copy(number, ticket)

    def _copy(self, number: int, ticket: int) -> None:
        """Give all that a late worker has of a job to an idle one as well, where there is one."""
        units = self._has(number, ticket)
        idle = [n for n in self._workers.ready() if n != number and self._workers[n].is_idle]
        if not units or not idle or (number, ticket) in self._copied:
            return
        self._copied.add((number, ticket))
        # What it would have done next is anyone's.
        self._jobs[ticket].schedule.lose(number, ())
        log.warning("worker %d is late with %d chunk(s); worker %d does them too", number, len(units), idle[0])
        ordered = tuple(sorted(units))
        # By another name: it may hold units of the job that are its own.
        self._send(Work(idle[0], ticket, ordered, ordered, copies=number), self._jobs[ticket], -ticket, hand_over=True)

    def _has(self, number: int, ticket: int, seen: Sequence[Call] = ()) -> set[int]:
        """A worker's units of a job, given to it and not handed over yet; `seen` are calls that ended without reply."""
        units = set(self._workers[number].held.get(ticket, ()))
        for call in (*seen, *self._calls.of_worker(number)):
            if isinstance(call, Work) and call.ticket == ticket and call.copies is None and not call.void:
                units.update(call.units, call.covers)
        return units

    def _look_for_workers(self) -> None:
        if self._workers.ready():
            self._seen_s = time.monotonic()
        elif time.monotonic() - self._seen_s > WAIT_FOR_RESOURCES_S:
            self.close()
            raise ResourceError(no_worker())

    def _unreachable(self, call: Call, error: exceptions.RayActorError) -> None:
        if getattr(error, "actor_init_failed", False):
            self.close()
            raise error
        assert call.worker is not None
        self._lost(call.worker, [call], "worker_lost", "died")

    def _lost(self, number: int, seen: Sequence[Call], cause: failure.Cause, how: str) -> None:
        """End a worker, put its units back, those it held included, and start another in its place."""
        if self._workers[number].node:
            self._seen_s = time.monotonic()
        had = {ticket: self._has(number, ticket, seen) for ticket in self._jobs}
        node = self._workers.end(number).node
        for call in (*seen, *self._calls.forget(number)):
            if isinstance(call, Gather) and call.ticket in had:
                had[call.ticket] |= self._jobs[call.ticket].gone(call.parts)
            elif isinstance(call, Work) and call.copies is not None and not call.void:
                self._copied.discard((call.copies, call.ticket))
        if cause == "worker_lost":
            # Its node may be lost: the others there are given nothing until they have said that they are not.
            for other in self._workers.of_node(node):
                self._workers[other].ready = False
                self._calls[self._workers[other].actor.ready.remote()] = Start(other)
        for ticket, units in had.items():
            self._void_copies(number, ticket)
            self._again(ticket, number, units, cause, f"worker {number} {how}")
        self._start_worker()

    def _gone(self, call: Gather) -> None:
        """Sums that lay on a node went with it."""
        units = self._jobs[call.ticket].gone(call.parts)
        self._again(call.ticket, NOBODY, units, "worker_lost", f"node {call.node[:8]} was lost")

    def _again(self, ticket: int, number: int, given: set[int], cause: failure.Cause, how: str) -> None:
        """Put the units that have not arrived back; a worker that is none any more had them."""
        running = self._jobs[ticket]
        lost = given - running.arrived
        if lost:
            what = f"{how} with {len(lost)} chunk(s) of round {running.job.broadcast.round}"
            self._count_failure(cause, running, lost, what)
        running.schedule.lose(number, lost)
        self._finish_if_whole(ticket)

    def _out_of_memory(self, call: Work, running: Running, num_done: int) -> None:
        """The worker lives, and has let go of what it had allocated: the chunk is tried once more, then the others."""
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

    def _count_failure(self, cause: failure.Cause, running: Running, lost: set[int], what: str) -> None:
        """Decide whether the units run again; if so, count and log it, else end the run."""
        before = max(running.failures[cause, unit] for unit in lost)
        decision = failure.decide(cause, before, what)
        log.warning(decision.reason)
        if not decision.retry:
            self.close()
            raise failure.given_up(cause, decision)
        running.retries += 1
        running.failures.update((cause, unit) for unit in lost)
