"""Settling: what the reply to a call, or its failure, means for the worker and for the job."""

from __future__ import annotations

from typing import Any

import ray
from ray import exceptions

from raysim.engine.job import UpdatesLost
from raysim.engine.on_ray.calls import Call, Gather, Start, Work
from raysim.engine.on_ray.client_pool import Worked
from raysim.engine.on_ray.crew import Crew
from raysim.engine.on_ray.jobs import Jobs
from raysim.engine.on_ray.pace import Pace
from raysim.engine.on_ray.race import Races
from raysim.engine.on_ray.raised import cause_of, raise_again
from raysim.engine.on_ray.recovery import Recovery
from raysim.engine.on_ray.running import Kept, NodeSums

HOLD_S = 2.0
"""A worker hands over its sums after this much work, so that losing it costs no more than that."""


class Settling:
    """Takes one reply after another.

    Args:
        crew: whose calls they are.
        jobs: what they are for.
        pace: told what units took.
        races: told who replied.
        recovery: sees to what was lost.
    """

    def __init__(self, crew: Crew, jobs: Jobs, pace: Pace, races: Races, recovery: Recovery) -> None:
        self._crew, self._jobs, self._pace, self._races, self._recovery = crew, jobs, pace, races, recovery

    def settle(self, reference: Any) -> None:
        """Take the reply that is there.

        Raises:
            UpdatesLost: what the job was to look at went with its node; the job is dropped.
            RaysimError: user code failed, or a budget is spent: the run is at its end.
            RayError: likewise, where raysim has no name for it.
        """
        call = self._crew.calls.pop(reference)
        if call is None or (isinstance(call, Gather) and call.ticket not in self._jobs):
            return
        try:
            reply = ray.get(reference)
        except exceptions.RayActorError as error:
            self._count_dead(call, error)
        except exceptions.RayTaskError as error:
            # First, because Ray makes it of the class of its cause as well.
            self._count_failed(call, error)
        except exceptions.ObjectLostError:
            if isinstance(call, Gather):
                self._recovery.redo_sums(call)
            else:
                self._recovery.replace_worker(call.worker, [call], "worker_lost", "went with its node")
        else:
            match call:
                case Start():
                    self._crew.workers.note_ready(call.worker, reply)
                case Gather():
                    self._jobs[call.ticket].add(reply, call.node)
                    self._jobs.end_if_whole(call.ticket)
                case Work():
                    self._count_worked(call, reply)

    def _count_worked(self, call: Work, reply: Worked) -> None:
        worker = self._crew.workers[call.worker]
        self._crew.count_reply(call)
        failed_copy = call.copies is not None and reply.out_of_memory
        if failed_copy:
            self._crew.drop(call)
        if call.void or failed_copy:
            self._crew.see_whether_able(call.worker)
            return
        running = self._jobs[call.ticket]
        took_s = running.count_done(call.worker, call.units, reply.done)
        self._pace.note(running)
        if reply.out_of_memory:
            self._recovery.redo_unfinished(call, len(reply.done))
            return
        self._races.count_reply(call, running)
        if call.kept:
            running.kept.append(Kept(frozenset(call.covers), call.kept))
        if call.sums is not None:
            running.on_nodes.setdefault(worker.node, []).append(NodeSums(reply.parts, call.sums))
        elif call.covers or reply.sums:
            # Sums may come though none were to be covered: of a call before that ran out of memory.
            running.add(reply.sums, worker.node)
        else:
            held_s = self._crew.count_held(call.worker, took_s)
            if held_s > HOLD_S and worker.held.get(call.ticket):
                self._crew.give(call.worker, running, (), hand_over=True)
        self._jobs.end_if_whole(call.ticket)

    def _count_dead(self, call: Call, error: exceptions.RayActorError) -> None:
        if getattr(error, "actor_init_failed", False):
            raise error
        assert call.worker is not None
        self._recovery.replace_worker(call.worker, [call], "worker_lost", "died")

    def _count_failed(self, call: Call, error: exceptions.RayTaskError) -> None:
        match call:
            case Gather():
                # What lies on nodes is only read: it must be gone.
                self._recovery.redo_sums(call)
                return
            case Work():
                self._crew.count_reply(call)
                if call.copies is not None:
                    # It did the units by another name, of which a dropped job does not know.
                    self._crew.drop(call)
                if call.void:
                    self._crew.see_whether_able(call.worker)
                    return
                if isinstance(cause_of(error), exceptions.ObjectLostError):
                    for number in self._crew.workers:
                        self._crew.void(number, call.ticket)
                    raise UpdatesLost(self._jobs.drop(call.ticket).job.broadcast.round) from None
        raise_again(error)
