"""Decides what follows from an event: `change(table, event)` changes the table, and returns what is to be done.

Units are given out while there are any, then results are asked for. What a late worker has is given to an idle one too,
and the first of them to reply counts; the other one's calls are *void*. What a lost worker, a lost node or a full card
had to do is done again, within the budgets of `raysim.engine.failure`. The reasons are in docs/architecture.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from raysim.engine import failure
from raysim.engine.job import UpdatesLost
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.schedule import NO_WORKER, Schedule
from raysim.engine.on_ray.executor.table import (
    WAITING,
    Call,
    DispatchTable,
    Gather,
    JobState,
    Start,
    Unit,
    Work,
    Worker,
)

DEPTH = 2
"""Calls with units that a worker has at a time: one running, one waiting, so that it never waits for the driver. Of
segments it has one: they take seconds, in which another worker may come free."""

WORTH_A_CALL_S = 0.01
"""Short units share a call until they are expected to take this long: a call itself costs about a millisecond."""

HOLD_S = 2.0
"""A worker hands over its results after this much work, so that losing it costs no more than that."""

S_PER_BYTE = 2e-9
"""What a sum costs to write, map, copy and add, in seconds a byte: the same kind of memory traffic everywhere."""

SLOW, SLOW_S = 3.0, 5.0
"""Slow: it runs longer than this many times what is expected, and longer than this. A free worker does it too."""

HUNG, HUNG_S = 20.0, 60.0
"""Hung: the same, and its worker is ended."""

HAND_OVER_S = 10.0
"""What a call without units is expected to take, however large the results and the updates are."""


@dataclass
class Turn:
    """The table while an event changes it, and the commands so far. Functions that are passed a turn change the table,
    and the jobs and workers in it; all others change nothing."""

    table: DispatchTable
    now_s: float
    commands: list[events.Command] = field(default_factory=list)

    def send(self, call: Call, broadcast: bool = False) -> int:
        """Send a call; returns its number."""
        number = self.table.num_calls
        self.table.num_calls += 1
        self.table.calls[number] = call
        self.commands.append(events.Send(number, call, broadcast))
        return number


def change(table: DispatchTable, event: events.Event, now_s: float) -> list[events.Command]:
    """Change the table as an event has it; returns what is to be done, in this order."""
    turn = Turn(table, now_s)
    match event:
        case events.Worked(number):
            _count_worked(turn, event, _ended(turn, number))
        case events.Heard():
            _give_out(turn)
        case events.Room(num):
            for _ in range(num):
                _start(turn)
        case events.Submitted(ticket, facts):
            num = len(facts.costs)
            schedule = Schedule(facts.costs, table.by_node(table.able()))
            turn.table.jobs[ticket] = JobState(ticket, facts, schedule, dict.fromkeys(range(num), WAITING))
        case events.Ready(number, node):
            start = turn.table.calls.pop(number)
            assert isinstance(start, Start)
            table.workers[start.worker].node = node
            if node not in turn.table.nodes:
                turn.table.nodes += (node,)
        case events.Gathered(number, lost):
            gather = turn.table.calls.pop(number)
            assert isinstance(gather, Gather)
            if gather.ticket in turn.table.jobs:
                _count_gathered(turn, turn.table.jobs[gather.ticket], gather, lost)
        case events.WorkerLost(number, how):
            worker = turn.table.calls[number].worker
            assert worker is not None
            lose(turn, worker, "worker_lost", how)
        case events.Failed(number, error, updates_lost):
            _count_failed(turn, _ended(turn, number), error, updates_lost)
        case events.Quiet():
            _look_for_late(turn)
            if turn.table.able():
                turn.table.seen_s = now_s
    return turn.commands


# Giving out


def next_for(job: JobState, worker: int, table: DispatchTable) -> tuple[int, ...]:
    """Take units for one more call of the worker from the job's schedule: one, or several short ones."""
    taken: list[int] = []
    expected_s = 0.0
    while not taken or expected_s < WORTH_A_CALL_S:
        # Only the first unit of a call may come from another worker: it may be idle, and what follows is its own.
        unit = job.schedule.take(worker, math.inf if taken else least_to_take(job))
        if unit is None:
            break
        taken.append(unit)
        expected_s += table.expected_s(job.facts.work, job.facts.costs[unit]) or WORTH_A_CALL_S
    return tuple(taken)


def least_to_take(job: JobState) -> float:
    """The cost that must be left in another worker's region before a free worker takes from it.

    Less than that takes no longer than sending and adding the two more records that it causes, of 12 bytes a number
    (float64 sums, float32 unit updates) where the model has 4.
    """
    sums_s = 2 * 3 * job.facts.num_bytes * S_PER_BYTE
    return sums_s * job.done_cost / job.busy_s if job.busy_s else 0.0


def _give_out(turn: Turn) -> None:
    """Fill every worker's queue; where a job has nothing left to give, ask for its results."""
    jobs = list(turn.table.jobs.values())
    loads = turn.table.able() if any(len(job.schedule) for job in jobs) else {}
    for job in jobs:
        while len(job.schedule) and _give_a_call_each(turn, job, loads):
            pass
        if not len(job.schedule):
            for worker in turn.table.unasked(job):
                _give(turn, worker, job, (), hand_over=True)
            _gather(turn, job)


def _give_a_call_each(turn: Turn, job: JobState, loads: dict[int, int]) -> bool:
    """Give every worker one more call, where there are units for it, and count it among its `loads`; returns whether
    there were for any."""
    table, runs, depth = turn.table, set(job.facts.runs), 1 if job.facts.runs else DEPTH
    # Whoever had the runs before still has what it made for them.
    able = sorted(loads, key=lambda worker: -len(runs & table.workers[worker].runs))
    taken = {worker: next_for(job, worker, table) for worker in able if loads[worker] < depth}
    for worker, units in taken.items():
        if units:
            _give(turn, worker, job, units, hand_over=not len(job.schedule))
            loads[worker] += 1
    return any(taken.values())


def _give(
    turn: Turn, worker: int, job: JobState, units: tuple[int, ...], hand_over: bool, copies: int | None = None
) -> None:
    """Have a worker carry out units, its own or those that `copies` is late with."""
    table, state = turn.table, turn.table.workers[worker]
    # What is added up on a node first, stays there; a small object would come to the driver with the reply anyway.
    apart = hand_over and job.facts.results == "gathered" and state.node != table.nodes[0]
    apart = apart and len(table.able_on(state.node)) > 1
    call = Work(worker, job.ticket, units, hand_over, apart, copies, job.facts.work, job.cost(units))
    idle = not any(other.worker == worker and type(other) is Work and other.units for other in table.calls.values())
    new = bool(units) and call.key not in state.told
    number = turn.send(call, new)
    if copies is None:
        job.move(units, Unit("called", number, worker))
    # A worker lets go of the broadcast when it hands over; should there be more units after all, it is told again.
    state.told = state.told - {call.key} if hand_over else state.told | {call.key}
    state.runs |= set(job.facts.runs)
    if idle:
        state.since_s = turn.now_s
    if hand_over and copies is None:
        state.held_s = 0.0


def _gather(turn: Turn, job: JobState) -> None:
    """Where nothing more of the job comes from a node, have what lies there added up and sent."""
    if job.facts.results != "gathered":
        return
    table = turn.table
    busy = {table.workers[call.worker].node for call in table.awaited(job.ticket) if isinstance(call, Work)}
    for node, handed in table.lying(job).items():
        if node in busy:
            continue
        here = table.able_on(node)
        if len(handed) > 1 and here:
            turn.send(Gather(min(here, key=here.__getitem__), job.ticket, node, tuple(handed)))
        else:
            for one in handed:
                turn.send(Gather(None, job.ticket, node, (one,)))


# Replies


def _count_worked(turn: Turn, event: events.Worked, call: Work) -> None:
    table, number = turn.table, event.call
    failed_copy = call.copies is not None and event.out_of_memory
    if failed_copy:
        turn.commands.append(events.Drop(call.worker, call.key))
    if call.void or failed_copy:
        return
    job, worker, took_s = table.jobs[call.ticket], table.workers[call.worker], sum(event.seconds)
    turn.commands.append(events.Count(call, worker.node))
    done, again = call.units[: len(event.seconds)], call.units[len(event.seconds) :]
    # Ray may show a worker's replies out of order: what a later call has handed over already is held no more.
    held = [unit for unit in done if job.units[unit].call == number and job.units[unit].state == "called"]
    job.done_cost += job.cost(done)
    job.busy_s += took_s
    if job.done_cost:
        table.s_per_cost |= dict.fromkeys(job.facts.measured, job.busy_s / job.done_cost)
    if event.out_of_memory:
        job.move(held, Unit("held", number, call.worker))
        _redo_unfinished(turn, job, call.worker, again)
        return
    if call.copies is None:
        _call_off(turn, job, call.worker)
    else:
        _win(turn, job, call, event.handed)
    if call.hand_over:
        # What came, not what was asked for: a unit that ran out of memory before the call is not in it.
        where = Unit("on_node", number, node=worker.node) if call.apart else Unit("arrived", number)
        job.move(event.handed, where)
    else:
        job.move(held, Unit("held", number, call.worker))
        worker.held_s += took_s
        if worker.held_s > HOLD_S and held and number > table.asked(job.ticket).get(call.worker, -1):
            _give(turn, call.worker, job, (), hand_over=True)
    _finish_if_whole(turn, job)


def _count_gathered(turn: Turn, job: JobState, gather: Gather, lost: bool) -> None:
    units = job.on_node(gather.handed)
    if lost:
        _put_back(turn, job, NO_WORKER, units, "worker_lost", f"node {gather.node[:8]} was lost")
        return
    turn.commands.append(events.Count(gather, gather.node))
    for unit in units:
        job.units[unit] = Unit("arrived", job.units[unit].call)
    _finish_if_whole(turn, job)


def _count_failed(turn: Turn, call: Work, error: Exception, updates_lost: bool) -> None:
    if call.copies is not None:
        # It did the units by another name, of which an abandoned job does not know.
        turn.commands.append(events.Drop(call.worker, call.key))
    if call.void:
        return
    job = turn.table.jobs[call.ticket]
    _fail(turn, job, UpdatesLost(job.facts.round) if updates_lost else error)


def _fail(turn: Turn, job: JobState, error: Exception) -> None:
    """End a job with an error. A run that has the workers to itself ends too, unless it is to make updates again."""
    ticket = job.ticket if job.facts.runs or isinstance(error, UpdatesLost) else None
    if ticket is not None:
        for worker in turn.table.workers:
            _void(turn, worker, job)
        _void_copies(turn, job)
        del turn.table.jobs[ticket]
    turn.commands.append(events.Raise(error, ticket))


def _finish_if_whole(turn: Turn, job: JobState) -> None:
    """A job whose results are all there comes to its end."""
    # The results may be whole before the last call has said how long it took.
    table = turn.table
    if len(job.schedule) or table.awaited(job.ticket):
        return
    if all(unit.state == "arrived" for unit in job.units.values()):
        del table.jobs[job.ticket]
        turn.commands.append(events.FinishJob(job, max(1, len(table.able()))))


# Late workers


def is_slow(running_s: float, expected_s: float | None) -> bool:
    """Whether units that were to take `expected_s` (None: never measured) are worth doing twice."""
    return expected_s is not None and running_s > max(SLOW_S, SLOW * expected_s)


def is_hung(running_s: float, expected_s: float | None) -> bool:
    """Whether a call that was to take `expected_s` will never end."""
    return expected_s is not None and running_s > max(HUNG_S, HUNG * expected_s)


def _look_for_late(turn: Turn) -> None:
    """Have what takes too long done by a worker that has nothing to do; end a worker that will never reply."""
    table = turn.table
    for worker in list(table.workers):
        calls = (call for call in table.calls.values() if isinstance(call, Work) and call.worker == worker)
        first = next(calls, None)
        if first is None:
            continue
        running_s = turn.now_s - table.workers[worker].since_s
        expected_s = table.expected_s(first.work, first.cost) if first.units else HAND_OVER_S
        if is_hung(running_s, expected_s):
            lose(turn, worker, "hung", f"has not replied for {running_s:.0f} s")
        elif is_slow(running_s, expected_s):
            for job in table.jobs.values():
                _race(turn, job, worker)


def _race(turn: Turn, job: JobState, late: int) -> None:
    """Give all that a late worker has of a job to an idle one as well, where there is one."""
    units = job.of_worker(late)
    idle = turn.table.by_node(worker for worker, load in turn.table.able().items() if worker != late and not load)
    # Each of two loops on one segment would sweep the other's files of client states.
    if job.facts.runs or not units or not idle or late in job.raced:
        return
    job.raced |= {late}
    # What it would have done next is anyone's.
    job.schedule.lose(late, ())
    what = f"worker {late} is late with {len(units)} chunk(s); worker {idle[0]} does them too"
    turn.commands.append(events.Warn(what))
    _give(turn, idle[0], job, tuple(sorted(units)), hand_over=True, copies=late)


def _win(turn: Turn, job: JobState, call: Work, handed: Iterable[int]) -> None:
    """A worker was first with what another one is late with."""
    late = call.copies
    assert late is not None
    turn.commands.append(events.Warn(f"worker {call.worker} was first with what worker {late} is late with"))
    job.raced -= {late}
    # The late one may have been given more since.
    others = job.of_worker(late) - set(handed)
    _void(turn, late, job)
    _free(job, late, others)


def _call_off(turn: Turn, job: JobState, late: int) -> None:
    """Nobody wants what others do in the worker's place: it has replied itself, or is none any more."""
    if late in job.raced:
        job.raced -= {late}
        _void_copies(turn, job, late)


def _void(turn: Turn, worker: int, job: JobState) -> None:
    """What the worker has of the job, and will have, is not wanted."""
    key = (job.ticket, None)
    for number, call in turn.table.calls.items():
        if isinstance(call, Work) and call.worker == worker and call.key == key:
            turn.table.calls[number] = call._replace(void=True)
    turn.table.workers[worker].told -= {key}
    turn.commands.append(events.Drop(worker, key))


def _void_copies(turn: Turn, job: JobState, late: int | None = None) -> None:
    """Nor are the copies of what a worker is late with, or of what anyone is."""
    for number, call in turn.table.calls.items():
        if not isinstance(call, Work) or call.ticket != job.ticket or call.copies is None:
            continue
        if late is None or call.copies == late:
            turn.table.calls[number] = call._replace(void=True)


# Losses


def lose(turn: Turn, worker: int, cause: failure.Cause, how: str) -> None:
    """End a worker, put its units back, those that it held included, and start another in its place.

    Args:
        turn: is changed.
        worker: its number.
        cause: why it is given up.
        how: goes on after "worker 3 ...".
    """
    table = turn.table
    lost = {ticket: job.of_worker(worker) for ticket, job in table.jobs.items()}
    # Units that wait behind the call that hangs did not make it hang: they keep their retry.
    blamed = _running(table, worker) if cause == "hung" else set()
    ended = table.workers.pop(worker)
    turn.commands.append(events.End(worker))
    if ended.node:
        table.seen_s = turn.now_s
    for number, call in list(table.calls.items()):
        if call.worker == worker:
            del table.calls[number]
            if isinstance(call, Gather) and call.ticket in lost:
                lost[call.ticket] |= table.jobs[call.ticket].on_node(call.handed)
            elif isinstance(call, Work) and call.copies is not None and not call.void:
                # Another one may step in for the late worker.
                table.jobs[call.ticket].raced -= {call.copies}
    if cause == "worker_lost":
        # Its node may be lost with it: its workers are given nothing until they have said that they are there.
        for other in table.able_on(ended.node):
            turn.send(Start(other))
    for ticket, units in lost.items():
        _call_off(turn, table.jobs[ticket], worker)
        _put_back(turn, table.jobs[ticket], worker, units, cause, f"worker {worker} {how}", blamed)
    _start(turn)


def _running(table: DispatchTable, worker: int) -> set[tuple[int, int]]:
    """The tickets and units of the call that the worker carries out."""
    calls = (call for call in table.calls.values() if isinstance(call, Work) and call.worker == worker)
    first = next(calls, None)
    return {(first.ticket, unit) for unit in first.units} if first else set()


def _redo_unfinished(turn: Turn, job: JobState, worker: int, again: Sequence[int]) -> None:
    """Memory ran out. The worker lives, and has let go of what it had allocated: a unit is tried once more, then those
    after it."""
    what = f"worker {worker} ran out of device memory on {job.facts.named(f'chunk {again[0]}')}"
    _count_failure(turn, job, "out_of_memory", {again[0]}, what)
    if job.ticket in turn.table.jobs:
        for unit in again:
            _give(turn, worker, job, (unit,), hand_over=False)


def _put_back(
    turn: Turn,
    job: JobState,
    worker: int,
    units: set[int],
    cause: failure.Cause,
    how: str,
    blamed: Iterable[tuple[int, int]] = (),
) -> None:
    """Put units back that a worker had, which is none any more. The failure counts against those that are blamed for
    it; where none of them is, against all."""
    if units:
        what = f"{how} with {job.facts.named(f'{len(units)} chunk(s)')}"
        to_count = units & {unit for ticket, unit in blamed if ticket == job.ticket}
        _count_failure(turn, job, cause, to_count or units, what)
    _free(job, worker, units)
    _finish_if_whole(turn, job)


def _free(job: JobState, worker: int, units: Iterable[int]) -> None:
    """Change the job: these units of the worker are anyone's, and so is its region."""
    job.schedule.lose(worker, units)
    job.move(units, WAITING)


def _count_failure(turn: Turn, job: JobState, cause: failure.Cause, units: set[int], what: str) -> None:
    """Decide whether the units run again; if so, count and log it, else end the job."""
    decision = failure.decide(cause, max(job.failures.get((cause, unit), 0) for unit in units), what)
    turn.commands.append(events.Warn(decision.reason))
    if not decision.retry:
        _fail(turn, job, failure.given_up(cause, decision))
        return
    job.retries += 1
    for unit in units:
        job.failures[cause, unit] = job.failures.get((cause, unit), 0) + 1


# Workers


def _start(turn: Turn) -> None:
    """Start one more worker."""
    worker = turn.table.num_workers
    turn.table.num_workers += 1
    turn.table.workers[worker] = Worker()
    turn.send(Start(worker))


def _ended(turn: Turn, number: int) -> Work:
    """The call, which has ended: its worker has begun the next one."""
    call = turn.table.calls.pop(number)
    assert isinstance(call, Work)
    turn.table.workers[call.worker].since_s = turn.now_s
    return call
