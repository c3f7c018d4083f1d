"""Assigns units to workers while there are any; then has the workers hand over their results."""

from __future__ import annotations

import math

from raysim.engine.on_ray.executor.table import DispatchTable, Gather, JobState, Unit, Work
from raysim.engine.on_ray.executor.turn import Turn

DEPTH = 2
"""Calls with units that a worker has at a time: one runs, one waits, so the worker never waits for the driver."""

LONG_S = 0.1
"""A worker has one call at a time if units are expected to take longer: another worker may be free before it is. The
millisecond that the driver needs is little beside such units. Segments, and units not measured yet, count as long."""

WORTH_A_CALL_S = 0.01
"""Short units share a call until they are expected to take this long: a call itself costs about a millisecond."""

DRIVER_S = 0.0005
"""What a call costs the driver, Ray's part included. Units share a call until they take a worker as long as the driver
needs for a call to every worker: then it can feed them all."""

S_PER_BYTE = 5e-10
"""Seconds a byte to write, map, copy and add a sum: the memory traffic is similar on all machines. On an AMD EPYC
(Zen 4) 90 MB take 18, 10 and 11 ms of the processor."""


def next_for(job: JobState, worker: int, table: DispatchTable) -> tuple[int, ...]:
    """Take units for one more call of the worker from the job's schedule: one unit, or several short ones."""
    taken: list[int] = []
    expected_s, worth_s = 0.0, max(WORTH_A_CALL_S, DRIVER_S * len(table.workers))
    while not taken or expected_s < worth_s:
        # Only the first unit of a call may come from another worker's region: then this worker may be idle.
        unit = job.schedule.take(worker, math.inf if taken else least_to_take(job))
        if unit is None:
            break
        taken.append(unit)
        expected_s += table.expected_s(job.facts.work, job.facts.costs[unit]) or worth_s
    return tuple(taken)


def most_calls(table: DispatchTable, job: JobState) -> int:
    """How many calls with units of the job a worker has at a time."""
    expected_s = table.expected_s(job.facts.work, job.facts.mean_cost)
    return DEPTH if expected_s is not None and expected_s <= LONG_S and not job.facts.runs else 1


def least_to_take(job: JobState) -> float:
    """The cost that must be left in another worker's region before a free worker takes from it.

    Taking causes two more records to be sent and added. A smaller cost is carried out sooner than that.
    """
    return 2 * record_s(job) * job.done_cost / job.busy_s if job.busy_s else 0.0


def record_s(job: JobState) -> float:
    """Seconds for one more record to be sent and added: 12 bytes a number at most (float64 sums, float32 unit updates),
    where the model has 4."""
    return 3 * job.facts.num_bytes * S_PER_BYTE


def dispatch(turn: Turn) -> None:
    """Fill every worker's queue; if a job has no waiting unit, have its results handed over."""
    jobs = list(turn.table.jobs.values())
    loads = turn.table.available() if any(len(job.schedule) for job in jobs) else {}
    for job in jobs:
        while len(job.schedule) and _assign_a_call_each(turn, job, loads):
            pass
        if not len(job.schedule):
            for worker in sorted(job.owing):
                assign(turn, worker, job, (), hand_over=True)
            _gather(turn, job)


def _assign_a_call_each(turn: Turn, job: JobState, loads: dict[int, int]) -> bool:
    """Send one more call to every worker that has units to take, and count it in `loads`; returns whether any had."""
    table, runs, depth = turn.table, set(job.facts.runs), most_calls(turn.table, job)
    # A worker that had the runs before has kept their data.
    free = (worker for worker, load in loads.items() if load < depth)
    order = sorted(free, key=lambda worker: -len(runs & table.workers[worker].runs))
    taken = {worker: next_for(job, worker, table) for worker in order}
    for worker, units in taken.items():
        if units:
            assign(turn, worker, job, units, hand_over=not len(job.schedule))
            loads[worker] += 1
    return any(taken.values())


def assign(
    turn: Turn, worker: int, job: JobState, units: tuple[int, ...], hand_over: bool, late_worker: int | None = None
) -> None:
    """Send a call with units to a worker. `late_worker`: the units are copies of that worker's."""
    table, state = turn.table, turn.table.workers[worker]
    # Results that are first added up on their node stay there. Small ones would travel with the reply in any case.
    apart = hand_over and job.facts.results == "gathered" and state.node != table.nodes[0]
    apart = apart and len(table.available_on(state.node)) > 1
    call = Work(worker, job.ticket, units, hand_over, apart, late_worker, job.facts.work, job.cost(units))
    idle = not any(type(other) is Work and other.units for other in table.calls_of.get(worker, {}).values())
    new = bool(units) and call.key not in state.broadcasts
    number = turn.send(call, new)
    if late_worker is None:
        job.move(units, Unit("called", number, worker))
        if hand_over:
            job.owing.pop(worker, None)
        else:
            job.owing[worker] = None
    # A worker releases the broadcast at the hand-over; if more units follow after all, it is sent again.
    state.broadcasts = state.broadcasts - {call.key} if hand_over else state.broadcasts | {call.key}
    state.runs |= set(job.facts.runs)
    if idle:
        state.since_s = turn.now_s
    if hand_over and late_worker is None:
        state.held_s = 0.0


def _gather(turn: Turn, job: JobState) -> None:
    """When no more results of the job will be added on a node, add up the ones there and send them to the driver."""
    table = turn.table
    for node in [node for node in job.landed if not table.awaits_work_of(node, job.ticket)]:
        handed, here = job.landed.pop(node), table.available_on(node)
        if len(handed) > 1 and here:
            turn.send(Gather(min(here, key=here.__getitem__), job.ticket, node, tuple(handed)))
        else:
            for one in handed:
                turn.send(Gather(None, job.ticket, node, (one,)))
