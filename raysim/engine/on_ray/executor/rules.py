"""Decides what follows from an event: `change(table, event)` changes the table, and returns commands.

The rules assign units to workers while there are any; then workers hand over their results. If a worker is late, an
idle worker carries out its units too. The first of the two to reply counts; the calls of the other are cancelled. After
the loss of a worker or a node, or when a card's memory is full, the units run again, within the budgets of
`raysim.engine.failure`. The reasons are in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.assigning import dispatch
from raysim.engine.on_ray.executor.late_workers import is_hung, is_slow, race
from raysim.engine.on_ray.executor.losses import lose
from raysim.engine.on_ray.executor.replies import count_done, count_failed, count_gathered
from raysim.engine.on_ray.executor.schedule import Schedule
from raysim.engine.on_ray.executor.table import WAITING, DispatchTable, Gather, JobState, Ping
from raysim.engine.on_ray.executor.turn import Turn, first_work, remove_call, start_worker

HAND_OVER_S = 10.0
"""Expected time of a call without units, however large the results and the updates are."""


def change(table: DispatchTable, event: events.Event, now_s: float) -> list[events.Command]:
    """Change the table as an event requires; returns the commands, in the order to carry them out."""
    turn = Turn(table, now_s)
    match event:
        case events.UnitsDone(number):
            count_done(turn, event, remove_call(turn, number))
        case events.RepliesRead():
            dispatch(turn)
        case events.CapacityAdded(num):
            for _ in range(num):
                start_worker(turn)
        case events.Submitted(ticket, facts):
            num = len(facts.costs)
            schedule = _schedule(table, facts.costs)
            turn.table.jobs[ticket] = JobState(ticket, facts, schedule, dict.fromkeys(range(num), WAITING))
        case events.Ready(number, node):
            ping = turn.table.remove(number)
            assert isinstance(ping, Ping)
            if not table.workers[ping.worker].node:
                for job in table.jobs.values():
                    job.schedule.close_region(ping.worker)
            table.place(ping.worker, node)
        case events.Gathered(number, lost):
            gather = turn.table.remove(number)
            assert isinstance(gather, Gather)
            if gather.ticket in turn.table.jobs:
                count_gathered(turn, turn.table.jobs[gather.ticket], gather, lost)
        case events.WorkerLost(number, how):
            worker = turn.table.calls[number].worker
            assert worker is not None
            lose(turn, worker, "worker_lost", how)
        case events.Failed(number, error, updates_lost):
            count_failed(turn, remove_call(turn, number), error, updates_lost)
        case events.Timeout():
            _check_late_workers(turn)
            if turn.table.available():
                turn.table.last_alive_s = now_s
    return turn.commands


def _schedule(table: DispatchTable, costs: Sequence[float]) -> Schedule:
    """Divide a job among the available workers; as long as nothing is measured, also among those that are starting."""
    available = table.by_node(table.available())
    # Later, whoever starts takes the place of a lost worker, or waits for room: it may be late by many rounds.
    starting = [] if table.seconds_per_cost else sorted(set(table.workers) - set(available))
    schedule = Schedule(costs, available + starting)
    for worker in starting:
        # It may be late all the same: then others take its units, however few are left.
        schedule.open_region(worker, ())
    return schedule


def _check_late_workers(turn: Turn) -> None:
    """Assign a slow worker's units to an idle worker too; end a worker that hangs."""
    table = turn.table
    for worker in list(table.workers):
        first = first_work(table, worker)
        if first is None:
            continue
        running_s = turn.now_s - table.workers[worker].since_s
        expected_s = table.expected_s(first.work, first.cost) if first.units else HAND_OVER_S
        if is_hung(running_s, expected_s):
            lose(turn, worker, "hung", f"has not replied for {running_s:.0f} s")
        elif is_slow(running_s, expected_s):
            for job in table.jobs.values():
                race(turn, job, worker)
