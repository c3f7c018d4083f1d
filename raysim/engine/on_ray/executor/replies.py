"""Counts what a reply reports: units that are done, results that arrived, an error of the user's code."""

from __future__ import annotations

from raysim.engine.job import UpdatesLost
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.assigning import assign, record_s
from raysim.engine.on_ray.executor.job_end import fail, finish_if_complete
from raysim.engine.on_ray.executor.late_workers import accept_copy, end_race
from raysim.engine.on_ray.executor.losses import put_back, retry_unfinished
from raysim.engine.on_ray.executor.schedule import NO_WORKER
from raysim.engine.on_ray.executor.table import DispatchTable, Gather, JobState, Unit, Work, Worker
from raysim.engine.on_ray.executor.turn import Turn

HOLD_S = 2.0
"""A worker hands over its results after this much work, so that losing it costs about twice that at most; but not
before it has worked `HOLD_RECORDS` times as long as a record takes. Where the job is expected to end within the same
time again, the results wait for its end: a region that is complete is one record, and half of one may be several."""

HOLD_RECORDS = 100


def count_done(turn: Turn, event: events.UnitsDone, call: Work) -> None:
    """Count the units of a call that has ended, and where their results are now."""
    table, number = turn.table, event.call
    failed_copy = call.late_worker is not None and event.out_of_memory
    if failed_copy:
        turn.commands.append(events.Drop(call.worker, call.key))
    if call.cancelled or failed_copy:
        return
    job, worker, took_s = table.jobs[call.ticket], table.workers[call.worker], sum(event.unit_s)
    turn.commands.append(events.Count(call, worker.node))
    done, again = call.units[: len(event.unit_s)], call.units[len(event.unit_s) :]
    # Ray may deliver a worker's replies out of order: a later call may have handed these results over already.
    held = [unit for unit in done if job.units[unit].call == number and job.units[unit].state == "called"]
    job.done_cost += job.cost(done)
    job.busy_s += took_s
    if job.done_cost:
        table.seconds_per_cost |= dict.fromkeys(job.facts.measured, job.busy_s / job.done_cost)
    if event.out_of_memory:
        job.move(held, Unit("held", number, call.worker))
        retry_unfinished(turn, job, call.worker, again)
        return
    if call.late_worker is None:
        end_race(turn, job, call.worker)
    else:
        accept_copy(turn, job, call, event.handed)
    if call.hand_over:
        # Not the units of the call: one of them may have run out of memory in an earlier call.
        where = Unit("on_node", number, node=worker.node) if call.apart else Unit("arrived", number)
        job.move(event.handed, where)
        if call.apart and event.handed:
            job.landed.setdefault(worker.node, []).append(number)
    else:
        job.move(held, Unit("held", number, call.worker))
        worker.held_s += took_s
        if held and _held_long(table, job, worker) and number > table.last_hand_over(call.worker, job.ticket):
            assign(turn, call.worker, job, (), hand_over=True)
    finish_if_complete(turn, job)


def _held_long(table: DispatchTable, job: JobState, worker: Worker) -> bool:
    """Whether a worker has held results for so long that it hands them over before the job ends."""
    hold_s = max(HOLD_S, HOLD_RECORDS * record_s(job))
    if worker.held_s <= hold_s:
        return False
    started = sum(map(len, table.workers_on.values()))
    rest_s = table.expected_s(job.facts.work, job.schedule.cost / max(1, started))
    return rest_s is None or rest_s > hold_s


def count_gathered(turn: Turn, job: JobState, gather: Gather, lost: bool) -> None:
    """Count results that were added up on a node; if the node was lost, put their units back."""
    units = job.units_handed(gather.handed)
    if lost:
        put_back(turn, job, NO_WORKER, units, "worker_lost", f"node {gather.node[:8]} was lost", units)
        return
    turn.commands.append(events.Count(gather, gather.node))
    for unit in units:
        job.units[unit] = Unit("arrived", job.units[unit].call)
    finish_if_complete(turn, job)


def count_failed(turn: Turn, call: Work, error: Exception, updates_lost: bool) -> None:
    """End the job of a call that failed, unless its error no longer matters."""
    if call.late_worker is not None:
        # Copies have a key of their own, which the end of the job does not drop.
        turn.commands.append(events.Drop(call.worker, call.key))
    if call.cancelled:
        return
    job = turn.table.jobs[call.ticket]
    fail(turn, job, UpdatesLost(job.facts.round) if updates_lost else error)
