"""Dispatch to a thousand workers: a reply costs the driver no more than with a few, and calls become longer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.assigning import DRIVER_S, next_for
from raysim.engine.on_ray.executor.rules import change
from raysim.engine.on_ray.executor.schedule import Schedule
from raysim.engine.on_ray.executor.table import DispatchTable, JobFacts, JobState, Ping, Work, Worker, WorkKind

WORK: WorkKind = ("train", 0)


def facts(units: int) -> JobFacts:
    return JobFacts(0, WORK, [1.0] * units, 1_000_000, "gathered")


@pytest.mark.parametrize(("workers", "units"), [(2, 1), (200, 1), (1_000, 5)])
def test_a_call_takes_as_long_as_the_driver_needs_for_all_workers(workers: int, units: int) -> None:
    table = DispatchTable(("here",), 0.0, seconds_per_cost={WORK: 0.1})
    table.workers = {number: Worker("here") for number in range(workers)}
    job = JobState(1, facts(20), Schedule([1.0] * 20, [0]), {})
    assert DRIVER_S * 1_000 == 0.5
    assert len(next_for(job, 0, table)) == units


def test_a_reply_costs_the_rules_as_much_with_many_workers_as_with_few() -> None:
    few, many = (calls_of(partial(carried_out, workers)) / workers for workers in (8, 128))
    assert many < 1.25 * few


def carried_out(workers: int) -> None:
    """Have a job with four chunks a worker done, eight workers a node; all replies that are there are read at once."""
    table = DispatchTable(("node 0",), 0.0)
    change(table, events.CapacityAdded(workers), 0.0)
    for number, call in list(table.calls.items()):
        assert isinstance(call, Ping)
        change(table, events.Ready(number, f"node {call.worker // 8}"), 0.0)
    change(table, events.Submitted(1, facts(4 * workers)), 0.0)
    while table.jobs:
        change(table, events.RepliesRead(), 0.0)
        for number, call in list(table.calls.items()):
            if isinstance(call, Work):
                units = table.jobs[1].units.items()
                held = tuple(unit for unit, at in units if at.worker == call.worker and at.call <= number)
                handed = held if call.hand_over else ()
                event: Any = events.UnitsDone(number, (1.0,) * len(call.units), handed, False)
            else:
                event = events.Gathered(number)
            change(table, event, 0.0)


def calls_of(act: Callable[[], None]) -> int:
    """How often functions and generators are entered within the rules, the table and the schedule."""
    count = 0

    def see(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call" and "on_ray" in frame.f_code.co_filename

    sys.setprofile(see)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count
