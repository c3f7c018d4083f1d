"""The crew: the workers, the calls that each of them has, and the units that each of them holds.

Everything that is asked of a worker is asked here, so that what is known of it stays true: how many calls it has, which
broadcasts, and whether it may be given more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from raysim.engine.on_ray.calls import Call, Calls, Gather, Start, Work
from raysim.engine.on_ray.running import NodeSums, Running
from raysim.engine.on_ray.workers import Workers


class Crew:
    """Workers by number, and what they were given.

    Args:
        workers: none of them has been called yet.
    """

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.calls = Calls()

    def start(self) -> None:
        """Start one more worker."""
        number, reference = self.workers.start()
        self.calls[reference] = Start(number)

    def give(self, number: int, running: Running, units: tuple[int, ...], hand_over: bool) -> None:
        """Have a worker carry out units of a job; with `hand_over`, the sums of all that it holds of it come after."""
        worker = self.workers[number]
        worker.held.setdefault(running.ticket, []).extend(units)
        covers: tuple[int, ...] = ()
        if hand_over:
            covers, worker.held_s = tuple(worker.held.pop(running.ticket)), 0.0
        self._send(Work(number, running.ticket, units, covers), running, hand_over)

    def give_copy(self, number: int, running: Running, units: tuple[int, ...], late: int) -> None:
        """Have a worker carry out and hand over what the worker `late` is late with."""
        self._send(Work(number, running.ticket, units, units, copies=late), running, hand_over=True)

    def _send(self, call: Work, running: Running, hand_over: bool) -> None:
        worker, job, name = self.workers[call.worker], running.job, call.name
        # What is added up on a node first, stays there; a small object would come to the driver with the reply anyway.
        apart = hand_over and not running.inline and len(self.workers.of_node(worker.node)) > 1
        apart = apart and worker.node != self.workers.nodes[0]
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
            running.count_sent(worker.node)
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
        self.calls[reference] = replace(call, kept=tuple(others), sums=sums, work=running.work, cost=cost)

    def have_combined(self, number: int, running: Running, sums: Sequence[NodeSums]) -> None:
        """Have a worker add up what lies on its node, and send what that comes to."""
        worker, job = self.workers[number], running.job
        made = worker.actor.combine.remote(len(job.units), job.kind, *(one.reference for one in sums))
        parts = tuple(part for one in sums for part in one.parts)
        self.calls[made] = Gather(worker.node, number, running.ticket, parts)

    def fetch(self, node: str, running: Running, sums: NodeSums) -> None:
        """Have sums that lie on a node sent as they are."""
        self.calls[sums.reference] = Gather(node, None, running.ticket, sums.parts)

    def count_held(self, number: int, took_s: float) -> float:
        """Add to the seconds of work since the worker last handed over; returns them."""
        worker = self.workers[number]
        worker.held_s += took_s
        return worker.held_s

    def keep(self, call: Work, apart_from: Sequence[int]) -> None:
        """The worker handed nothing over: it holds what the call was to cover still, but for some units."""
        held = self.workers[call.worker].held
        covered = (*held.get(call.ticket, ()), *call.covers)
        held[call.ticket] = [unit for unit in covered if unit not in apart_from]

    def count_reply(self, call: Work) -> None:
        """The worker has carried out the call, or failed in it."""
        worker = self.workers[call.worker]
        worker.in_flight -= bool(call.units)
        worker.since_s = time.monotonic()

    def units_of(self, number: int, ticket: int, seen: Sequence[Call] = ()) -> set[int]:
        """A worker's units of a job, given to it and not handed over yet; `seen` are calls that ended without reply."""
        units = set(self.workers[number].held.get(ticket, ()))
        for call in (*seen, *self.calls.of_worker(number)):
            if isinstance(call, Work) and call.ticket == ticket and call.copies is None and not call.void:
                units.update(call.units, call.covers)
        return units

    def void(self, number: int, ticket: int) -> None:
        """What the worker has of the job, and will have, is not wanted."""
        worker = self.workers[number]
        self.calls.void(number, ticket)
        worker.held.pop(ticket, None)
        worker.told.discard(ticket)
        worker.actor.drop.remote(ticket)
        self.see_whether_able(number)

    def drop(self, call: Work) -> None:
        """Have the worker let go of what it has of the call's job, under the call's name for it."""
        self.workers[call.worker].actor.drop.remote(call.name)

    def see_whether_able(self, number: int) -> None:
        """A worker that still is about what nobody wants, or has yet to say that it is there, is given nothing else."""
        calls = self.calls.of_worker(number)
        late = any(isinstance(call, Start) or (isinstance(call, Work) and call.void) for call in calls)
        worker = self.workers[number]
        worker.ready = bool(worker.node) and not late

    def ask_node(self, node: str) -> None:
        """The node may be lost: its workers are given nothing until they have said that they are there."""
        for number in self.workers.of_node(node):
            self.workers[number].ready = False
            self.calls[self.workers[number].actor.ready.remote()] = Start(number)

    def close(self) -> None:
        """End all workers, and wait for none."""
        self.calls.clear()
        self.workers.close()
