"""Runs units again after the loss of a worker or a node, or when a card's memory is full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raysim.engine import failure
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.assigning import assign
from raysim.engine.on_ray.executor.job_end import fail, finish_if_complete, release
from raysim.engine.on_ray.executor.late_workers import end_race
from raysim.engine.on_ray.executor.table import DispatchTable, Gather, JobState, Start, Work
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
    lost = {ticket: job.of_worker(worker) for ticket, job in table.jobs.items()}
    # Units that wait behind the hanging call did not cause the hang: they keep their retry.
    blamed = _running(table, worker) if cause == "hung" else set()
    calls = list(table.of_worker.get(worker, {}).values())
    ended = table.displace(worker)
    turn.commands.append(events.End(worker))
    if ended.node:
        table.last_alive_s = turn.now_s
    for call in calls:
        if isinstance(call, Gather) and call.ticket in lost:
            lost[call.ticket] |= table.jobs[call.ticket].on_node(call.handed)
        elif isinstance(call, Work) and call.late_worker is not None and not call.cancelled:
            # Another worker may take the late worker's units.
            table.jobs[call.ticket].raced -= {call.late_worker}
    if cause == "worker_lost":
        # Its node may be lost too: the other workers there get no units until they reply.
        for other in table.available_on(ended.node):
            turn.send(Start(other))
    for ticket, units in lost.items():
        end_race(turn, table.jobs[ticket], worker)
        put_back(turn, table.jobs[ticket], worker, units, cause, f"worker {worker} {how}", blamed)
    if ended.node:
        start_worker(turn)
    else:
        _start_again(turn, worker, ended.deaths + 1)


def _start_again(turn: Turn, worker: int, deaths: int) -> None:
    """Start another worker in the place of one that died while it started, unless too many have died there."""
    most = failure.BUDGETS["worker_lost"]
    if deaths <= most:
        what = f"worker {worker} died while it started; another takes its place, {deaths} of {most}"
        turn.commands.append(events.Warn(what))
        start_worker(turn, deaths)
        return
    turn.table.num_given_up += 1
    what = f"worker {worker} died while it started, and so did {most} before it"
    if turn.table.workers:
        turn.commands.append(events.Warn(f"{what}: the run goes on without it"))
        return
    why = "memory may be short, or a library may crash when it is imported; the reason is in Ray's logs"
    turn.commands.append(events.Raise(WorkerLostError(f"{what}, and there is no other: {why}"), None))


def _running(table: DispatchTable, worker: int) -> set[tuple[int, int]]:
    """The tickets and units of the call that the worker carries out."""
    first = first_work(table, worker)
    return {(first.ticket, unit) for unit in first.units} if first else set()


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
    blamed: Iterable[tuple[int, int]] = (),
) -> None:
    """Put back the units of a lost worker. The failure counts against the blamed units; if there are none, against
    all."""
    if units:
        what = f"{how} with {job.facts.several(len(units))}"
        to_count = units & {unit for ticket, unit in blamed if ticket == job.ticket}
        _count_failure(turn, job, cause, to_count or units, what)
    release(job, worker, units)
    finish_if_complete(turn, job)


def _count_failure(turn: Turn, job: JobState, cause: failure.Cause, units: set[int], what: str) -> None:
    """Decide whether the units run again; if so, count and log it, else end the job."""
    decision = failure.decide(cause, max(job.failures.get((cause, unit), 0) for unit in units), what)
    turn.commands.append(events.Warn(decision.reason))
    if not decision.retry:
        fail(turn, job, failure.given_up(cause, decision))
        return
    job.retries += 1
    for unit in units:
        job.failures[cause, unit] = job.failures.get((cause, unit), 0) + 1
