"""Ends a job: with its results, or with an error; cancels what workers still do of it."""

from __future__ import annotations

from collections.abc import Iterable

from raysim.engine.job import UpdatesLost
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.table import WAITING, JobState, Work
from raysim.engine.on_ray.executor.turn import Turn


def fail(turn: Turn, job: JobState, error: Exception) -> None:
    """End a job with an error. If the workers have only one run, it ends too, unless it can train the updates again."""
    ticket = job.ticket if job.facts.runs or isinstance(error, UpdatesLost) else None
    if ticket is not None:
        for worker in turn.table.workers:
            cancel(turn, worker, job)
        cancel_copies(turn, job)
        del turn.table.jobs[ticket]
    turn.commands.append(events.Raise(error, ticket))


def finish_if_complete(turn: Turn, job: JobState) -> None:
    """End a job if all its results have arrived."""
    # The results may be complete before the reply of the last call, which brings its times.
    table = turn.table
    if len(job.schedule) or table.awaits(job.ticket):
        return
    if all(unit.state == "arrived" for unit in job.units.values()):
        del table.jobs[job.ticket]
        turn.commands.append(events.FinishJob(job, max(1, len(table.available()))))


def cancel(turn: Turn, worker: int, job: JobState) -> None:
    """Cancel the worker's calls of the job, copies excepted, and drop its results."""
    key = (job.ticket, None)
    for number, call in turn.table.calls_of.get(worker, {}).items():
        if isinstance(call, Work) and call.key == key:
            turn.table.put(number, call._replace(cancelled=True))
    turn.table.workers[worker].broadcasts -= {key}
    job.owing.pop(worker, None)
    turn.commands.append(events.Drop(worker, key))


def cancel_copies(turn: Turn, job: JobState, late: int | None = None) -> None:
    """Cancel the copies of a late worker's units of the job; None: of all late workers."""
    for number, call in turn.table.calls.items():
        if not isinstance(call, Work) or call.ticket != job.ticket or call.late_worker is None:
            continue
        if late is None or call.late_worker == late:
            turn.table.put(number, call._replace(cancelled=True))


def release(job: JobState, worker: int, units: Iterable[int]) -> None:
    """Change the job: any worker may take these units of the worker, and its region."""
    job.schedule.open_region(worker, units)
    job.move(units, WAITING)
    job.owing.pop(worker, None)
