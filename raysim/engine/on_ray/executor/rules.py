"""Decides what follows from an event: `change(table, event)` changes the table, and returns commands.

The rules assign units to workers while there are any; then workers hand over their results. If a worker is late, an
idle worker carries out its units too. The first of the two to reply counts; the calls of the other are cancelled. After
the loss of a worker or a node, or when a card's memory is full, the units run again, within the budgets of
`raysim.engine.failure`. The reasons are in docs/architecture.md.
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
"""Calls with units that a worker has at a time: one runs, one waits, so the worker never waits for the driver."""

LONG_S = 0.1
"""A worker has one call at a time if units are expected to take longer: another worker may be free before it is. The
millisecond that the driver needs is little beside such units. Segments, and units not measured yet, count as long."""

WORTH_A_CALL_S = 0.01
"""Short units share a call until they are expected to take this long: a call itself costs about a millisecond."""

DRIVER_S = 0.0005
"""What a call costs the driver, Ray's part included. Units share a call until they take a worker as long as the driver
needs for a call to every worker: then it can feed them all."""

HOLD_S = 2.0
"""A worker hands over its results after this much work, so that losing it costs no more than that."""

S_PER_BYTE = 2e-9
"""Seconds a byte to write, map, copy and add a sum: the memory traffic is similar on all machines."""

SLOW, SLOW_S = 3.0, 5.0
"""A call is slow after SLOW times its expected time, and SLOW_S seconds. A free worker then carries it out too."""

HUNG, HUNG_S = 20.0, 60.0
"""A call hangs after HUNG times its expected time, and HUNG_S seconds. Its worker is then ended."""

HAND_OVER_S = 10.0
"""Expected time of a call without units, however large the results and the updates are."""


@dataclass
class Turn:
    """The table while an event changes it, and the commands so far. Functions with a turn as argument change the table,
    and the jobs and workers in it; all others change nothing."""

    table: DispatchTable
    now_s: float
    commands: list[events.Command] = field(default_factory=list)

    def send(self, call: Call, broadcast: bool = False) -> int:
        """Send a call; returns its number."""
        number = self.table.num_calls
        self.table.num_calls += 1
        self.table.put(number, call)
        self.commands.append(events.Send(number, call, broadcast))
        return number


def change(table: DispatchTable, event: events.Event, now_s: float) -> list[events.Command]:
    """Change the table as an event requires; returns the commands, in the order to carry them out."""
    turn = Turn(table, now_s)
    match event:
        case events.UnitsDone(number):
            _count_done(turn, event, _ended(turn, number))
        case events.RepliesRead():
            _dispatch(turn)
        case events.CapacityAdded(num):
            for _ in range(num):
                _start(turn)
        case events.Submitted(ticket, facts):
            num = len(facts.costs)
            schedule = Schedule(facts.costs, table.by_node(table.available()))
            turn.table.jobs[ticket] = JobState(ticket, facts, schedule, dict.fromkeys(range(num), WAITING))
        case events.Ready(number, node):
            start = turn.table.remove(number)
            assert isinstance(start, Start)
            table.place(start.worker, node)
        case events.Gathered(number, lost):
            gather = turn.table.remove(number)
            assert isinstance(gather, Gather)
            if gather.ticket in turn.table.jobs:
                _count_gathered(turn, turn.table.jobs[gather.ticket], gather, lost)
        case events.WorkerLost(number, how):
            worker = turn.table.calls[number].worker
            assert worker is not None
            lose(turn, worker, "worker_lost", how)
        case events.Failed(number, error, updates_lost):
            _count_failed(turn, _ended(turn, number), error, updates_lost)
        case events.Timeout():
            _check_late_workers(turn)
            if turn.table.available():
                turn.table.last_alive_s = now_s
    return turn.commands


# Assigning units


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

    Taking causes two more records to be sent and added, with 12 bytes a number (float64 sums, float32 unit updates);
    the model has 4. A smaller cost is carried out sooner than that.
    """
    sums_s = 2 * 3 * job.facts.num_bytes * S_PER_BYTE
    return sums_s * job.done_cost / job.busy_s if job.busy_s else 0.0


def _dispatch(turn: Turn) -> None:
    """Fill every worker's queue; if a job has no waiting unit, have its results handed over."""
    jobs = list(turn.table.jobs.values())
    loads = turn.table.available() if any(len(job.schedule) for job in jobs) else {}
    for job in jobs:
        while len(job.schedule) and _assign_a_call_each(turn, job, loads):
            pass
        if not len(job.schedule):
            for worker in sorted(job.owing):
                _assign(turn, worker, job, (), hand_over=True)
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
            _assign(turn, worker, job, units, hand_over=not len(job.schedule))
            loads[worker] += 1
    return any(taken.values())


def _assign(
    turn: Turn, worker: int, job: JobState, units: tuple[int, ...], hand_over: bool, late_worker: int | None = None
) -> None:
    """Send a call with units to a worker. `late_worker`: the units are copies of that worker's."""
    table, state = turn.table, turn.table.workers[worker]
    # Results that are first added up on their node stay there. Small ones would travel with the reply in any case.
    apart = hand_over and job.facts.results == "gathered" and state.node != table.nodes[0]
    apart = apart and len(table.available_on(state.node)) > 1
    call = Work(worker, job.ticket, units, hand_over, apart, late_worker, job.facts.work, job.cost(units))
    idle = not any(type(other) is Work and other.units for other in table.of_worker.get(worker, {}).values())
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


# Replies


def _count_done(turn: Turn, event: events.UnitsDone, call: Work) -> None:
    table, number = turn.table, event.call
    failed_copy = call.late_worker is not None and event.out_of_memory
    if failed_copy:
        turn.commands.append(events.Drop(call.worker, call.key))
    if call.cancelled or failed_copy:
        return
    job, worker, took_s = table.jobs[call.ticket], table.workers[call.worker], sum(event.seconds)
    turn.commands.append(events.Count(call, worker.node))
    done, again = call.units[: len(event.seconds)], call.units[len(event.seconds) :]
    # Ray may deliver a worker's replies out of order: a later call may have handed these results over already.
    held = [unit for unit in done if job.units[unit].call == number and job.units[unit].state == "called"]
    job.done_cost += job.cost(done)
    job.busy_s += took_s
    if job.done_cost:
        table.seconds_per_cost |= dict.fromkeys(job.facts.measured, job.busy_s / job.done_cost)
    if event.out_of_memory:
        job.move(held, Unit("held", number, call.worker))
        _retry_unfinished(turn, job, call.worker, again)
        return
    if call.late_worker is None:
        _end_race(turn, job, call.worker)
    else:
        _accept_copy(turn, job, call, event.handed)
    if call.hand_over:
        # Not the units of the call: one of them may have run out of memory in an earlier call.
        where = Unit("on_node", number, node=worker.node) if call.apart else Unit("arrived", number)
        job.move(event.handed, where)
        if call.apart and event.handed:
            job.landed.setdefault(worker.node, []).append(number)
    else:
        job.move(held, Unit("held", number, call.worker))
        worker.held_s += took_s
        if worker.held_s > HOLD_S and held and number > table.last_hand_over(call.worker, job.ticket):
            _assign(turn, call.worker, job, (), hand_over=True)
    _finish_if_complete(turn, job)


def _count_gathered(turn: Turn, job: JobState, gather: Gather, lost: bool) -> None:
    units = job.on_node(gather.handed)
    if lost:
        _put_back(turn, job, NO_WORKER, units, "worker_lost", f"node {gather.node[:8]} was lost")
        return
    turn.commands.append(events.Count(gather, gather.node))
    for unit in units:
        job.units[unit] = Unit("arrived", job.units[unit].call)
    _finish_if_complete(turn, job)


def _count_failed(turn: Turn, call: Work, error: Exception, updates_lost: bool) -> None:
    if call.late_worker is not None:
        # Copies have a key of their own, which the end of the job does not drop.
        turn.commands.append(events.Drop(call.worker, call.key))
    if call.cancelled:
        return
    job = turn.table.jobs[call.ticket]
    _fail(turn, job, UpdatesLost(job.facts.round) if updates_lost else error)


def _fail(turn: Turn, job: JobState, error: Exception) -> None:
    """End a job with an error. If the workers have only one run, it ends too, unless it can train the updates again."""
    ticket = job.ticket if job.facts.runs or isinstance(error, UpdatesLost) else None
    if ticket is not None:
        for worker in turn.table.workers:
            _cancel(turn, worker, job)
        _cancel_copies(turn, job)
        del turn.table.jobs[ticket]
    turn.commands.append(events.Raise(error, ticket))


def _finish_if_complete(turn: Turn, job: JobState) -> None:
    """End a job if all its results have arrived."""
    # The results may be complete before the reply of the last call, which brings its times.
    table = turn.table
    if len(job.schedule) or table.awaits(job.ticket):
        return
    if all(unit.state == "arrived" for unit in job.units.values()):
        del table.jobs[job.ticket]
        turn.commands.append(events.FinishJob(job, max(1, len(table.available()))))


# Late workers


def is_slow(running_s: float, expected_s: float | None) -> bool:
    """Whether units with the expected time `expected_s` (None: not measured) should be carried out twice."""
    return expected_s is not None and running_s > max(SLOW_S, SLOW * expected_s)


def is_hung(running_s: float, expected_s: float | None) -> bool:
    """Whether a call with the expected time `expected_s` counts as one that will never end."""
    return expected_s is not None and running_s > max(HUNG_S, HUNG * expected_s)


def _check_late_workers(turn: Turn) -> None:
    """Assign a slow worker's units to an idle worker too; end a worker that hangs."""
    table = turn.table
    for worker in list(table.workers):
        first = _first_work(table, worker)
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
    """Assign all units that a late worker has of a job to an idle worker too, if there is one."""
    units = job.of_worker(late)
    idle = turn.table.by_node(worker for worker, load in turn.table.available().items() if worker != late and not load)
    # Two loops on one segment would delete each other's files of client states.
    if job.facts.runs or not units or not idle or late in job.raced:
        return
    job.raced |= {late}
    # Any worker may take the late worker's waiting units.
    job.schedule.lose(late, ())
    what = f"worker {late} is late with {len(units)} chunk(s); worker {idle[0]} does them too"
    turn.commands.append(events.Warn(what))
    _assign(turn, idle[0], job, tuple(sorted(units)), hand_over=True, late_worker=late)


def _accept_copy(turn: Turn, job: JobState, call: Work, handed: Iterable[int]) -> None:
    """Use the results of a worker that carried out a late worker's units first; cancel the late worker's calls."""
    late = call.late_worker
    assert late is not None
    turn.commands.append(events.Warn(f"worker {call.worker} was first with what worker {late} is late with"))
    job.raced -= {late}
    # Further units may have been assigned to the late worker since.
    others = job.of_worker(late) - set(handed)
    _cancel(turn, late, job)
    _release(job, late, others)


def _end_race(turn: Turn, job: JobState, late: int) -> None:
    """Cancel the copies of a late worker's units: the worker has replied itself, or is lost."""
    if late in job.raced:
        job.raced -= {late}
        _cancel_copies(turn, job, late)


def _cancel(turn: Turn, worker: int, job: JobState) -> None:
    """Cancel the worker's calls of the job, copies excepted, and drop its results."""
    key = (job.ticket, None)
    for number, call in turn.table.of_worker.get(worker, {}).items():
        if isinstance(call, Work) and call.key == key:
            turn.table.put(number, call._replace(cancelled=True))
    turn.table.workers[worker].broadcasts -= {key}
    job.owing.pop(worker, None)
    turn.commands.append(events.Drop(worker, key))


def _cancel_copies(turn: Turn, job: JobState, late: int | None = None) -> None:
    """Cancel the copies of a late worker's units of the job; None: of all late workers."""
    for number, call in turn.table.calls.items():
        if not isinstance(call, Work) or call.ticket != job.ticket or call.late_worker is None:
            continue
        if late is None or call.late_worker == late:
            turn.table.put(number, call._replace(cancelled=True))


# Losses


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
        _end_race(turn, table.jobs[ticket], worker)
        _put_back(turn, table.jobs[ticket], worker, units, cause, f"worker {worker} {how}", blamed)
    _start(turn)


def _running(table: DispatchTable, worker: int) -> set[tuple[int, int]]:
    """The tickets and units of the call that the worker carries out."""
    first = _first_work(table, worker)
    return {(first.ticket, unit) for unit in first.units} if first else set()


def _first_work(table: DispatchTable, worker: int) -> Work | None:
    """The call that the worker carries out."""
    return next((call for call in table.of_worker.get(worker, {}).values() if isinstance(call, Work)), None)


def _retry_unfinished(turn: Turn, job: JobState, worker: int, again: Sequence[int]) -> None:
    """Run units again after memory ran out: the first once more, then those after it. The worker is alive, and has
    released its memory."""
    what = f"worker {worker} ran out of device memory on {job.facts.named(f'chunk {again[0]}')}"
    _count_failure(turn, job, "out_of_memory", {again[0]}, what)
    if job.ticket in turn.table.jobs:
        for unit in again:
            _assign(turn, worker, job, (unit,), hand_over=False)


def _put_back(
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
        what = f"{how} with {job.facts.named(f'{len(units)} chunk(s)')}"
        to_count = units & {unit for ticket, unit in blamed if ticket == job.ticket}
        _count_failure(turn, job, cause, to_count or units, what)
    _release(job, worker, units)
    _finish_if_complete(turn, job)


def _release(job: JobState, worker: int, units: Iterable[int]) -> None:
    """Change the job: any worker may take these units of the worker, and its region."""
    job.schedule.lose(worker, units)
    job.move(units, WAITING)
    job.owing.pop(worker, None)


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
    """Remove a call that has ended; its worker has begun the next one."""
    call = turn.table.remove(number)
    assert isinstance(call, Work)
    turn.table.workers[call.worker].since_s = turn.now_s
    return call
