"""Runs units again after the loss of a worker or a node, or when a card's memory is full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysim.engine import failure
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.assigning import assign
from raysim.engine.on_ray.executor.job_end import fail, finish_if_complete, release
from raysim.engine.on_ray.executor.late_workers import end_race
from raysim.engine.on_ray.executor.table import DispatchTable, Gather, JobState, Ping, Work
from raysim.engine.on_ray.executor.turn import Turn, first_work, start_worker
from raysim.errors import WorkerLostError


def lose(turn: Turn, worker: int, cause: failure.Cause, how: str) -> None:
    """End a worker, put its units back, those that it held included, and start another in its place.

    Args:
        turn: is changed.
        worker: its number.
        cause: why it is ended.
        how: the rest of a message that begins with "worker 3".
    """
    table = turn.table
    lost = _lost_units(table, worker)
    blamed = _blamed_units(table, worker, lost, cause)
    _end_copies(table, worker)
    ended = table.displace(worker)
    turn.commands.append(events.End(worker))
    if ended.node:
        table.last_alive_s = turn.now_s
    if cause == "worker_lost":
        # Its node may be lost too: the other workers there get no units until they reply.
        for other in table.available_on(ended.node):
            turn.send(Ping(other))
    for ticket, units in lost.items():
        end_race(turn, table.jobs[ticket], worker)
        put_back(turn, table.jobs[ticket], worker, units, cause, f"worker {worker} {how}", blamed[ticket])
    if ended.node:
        start_worker(turn)
    else:
        _start_again(turn, worker, ended.deaths)


def _lost_units(table: DispatchTable, worker: int) -> dict[int, set[int]]:
    """Return, by job, the units whose results are lost with a worker: its own, and those that it adds up."""
    lost = {ticket: job.units_of(worker) for ticket, job in table.jobs.items()}
    for call in table.calls_of.get(worker, {}).values():
        if isinstance(call, Gather) and call.ticket in lost:
            lost[call.ticket] |= table.jobs[call.ticket].units_handed(call.handed)
    return lost


def _blamed_units(
    table: DispatchTable, worker: int, lost: Mapping[int, set[int]], cause: failure.Cause
) -> dict[int, set[int]]:
    """Return, by job, the lost units against which the failure counts, of every job with lost units.

    Of a worker that hangs they are the units of the call that it carries out: those that wait behind it, of any job,
    did not cause the hang, and keep their retry. If that call lost none, all count, so that the run ends.
    """
    first = first_work(table, worker) if cause == "hung" else None
    hanging = lost.get(first.ticket, set()) & set(first.units) if first else set()
    if not first or not hanging:
        return dict(lost)
    return {ticket: hanging if ticket == first.ticket else set() for ticket in lost}


def _end_copies(table: DispatchTable, worker: int) -> None:
    """Note that a worker no longer carries out late workers' units: another one may."""
    for call in table.calls_of.get(worker, {}).values():
        if isinstance(call, Work) and call.late_worker is not None and not call.cancelled:
            table.jobs[call.ticket].raced -= {call.late_worker}


def _start_again(turn: Turn, worker: int, deaths: int) -> None:
    """Start another worker in the place of one that died while it started; `deaths`: of those before it there."""
    decision = failure.decide("worker_lost", deaths, f"worker {worker} died while it started")
    if decision.retry:
        turn.commands.append(events.Warn(decision.reason))
        start_worker(turn, deaths + 1)
        return
    turn.table.num_given_up += 1
    if turn.table.workers:
        turn.commands.append(events.Warn(f"{decision.reason}; the run goes on without it"))
        return
    why = "memory may be short, or a library may crash when it is imported; the reason is in Ray's logs"
    turn.commands.append(events.Raise(WorkerLostError(f"{decision.reason}, and there is no other: {why}"), None))


def retry_unfinished(turn: Turn, job: JobState, worker: int, again: Sequence[int]) -> None:
    """Run units again after memory ran out: the first once more, then those after it. The worker is alive, and has
    released its memory."""
    what = f"worker {worker} ran out of device memory on {job.facts.one(again[0])}"
    _count_failure(turn, job, "out_of_memory", {again[0]}, what)
    if job.ticket in turn.table.jobs:
        for unit in again:
            assign(turn, worker, job, (unit,), hand_over=False)


def put_back(
    turn: Turn,
    job: JobState,
    worker: int,
    units: set[int],
    cause: failure.Cause,
    how: str,
    blamed: set[int],
) -> None:
    """Put back the units of a lost worker. The failure counts against the blamed ones of them."""
    if units:
        _count_failure(turn, job, cause, blamed, f"{how} with {job.facts.several(len(units))}")
    release(job, worker, units)
    finish_if_complete(turn, job)


def _count_failure(turn: Turn, job: JobState, cause: failure.Cause, units: set[int], what: str) -> None:
    """Decide whether lost units run again. If so, log and count it; else end the job with an error that says so.
    `units`: those against which the failure counts; empty if another job's unit caused it."""
    if not units:
        turn.commands.append(events.Warn(f"{what}: runs again; the failure counts against another job"))
        job.retries += 1
        return
    decision = failure.decide(cause, max(job.failures.get((cause, unit), 0) for unit in units), what)
    if not decision.retry:
        fail(turn, job, failure.given_up(cause, decision))
        return
    turn.commands.append(events.Warn(decision.reason))
    job.retries += 1
    for unit in units:
        job.failures[cause, unit] = job.failures.get((cause, unit), 0) + 1
