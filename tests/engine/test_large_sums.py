"""Dispatch by what a record of sums costs: long clients of a large model level workers, and its sums travel seldom."""

from __future__ import annotations

from typing import Any

import pytest

from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.rules import change
from raysim.engine.on_ray.executor.table import DispatchTable, JobFacts, Ping, Work, WorkKind

WORK: WorkKind = ("train", 0)
LARGE = 45_000_000
"""Bytes of a model of eleven million numbers."""


def started(costs: list[float], num_bytes: int) -> DispatchTable:
    """Return the table of two workers that have their first units of a job."""
    table = DispatchTable(("here",), 0.0)
    change(table, events.CapacityAdded(2), 0.0)
    for number, call in list(table.calls.items()):
        assert isinstance(call, Ping)
        change(table, events.Ready(number, "here"), 0.0)
    change(table, events.Submitted(1, JobFacts(0, WORK, costs, num_bytes, "summed")), 0.0)
    change(table, events.RepliesRead(), 0.0)
    return table


def units_of(table: DispatchTable) -> dict[int | None, tuple[int, ...]]:
    return {call.worker: call.units for call in table.calls.values() if isinstance(call, Work)}


def done(table: DispatchTable, worker: int, seconds: float) -> list[Any]:
    """Have the worker's call end after so many seconds; returns its next calls."""
    (number,) = (n for n, call in table.calls.items() if call.worker == worker)
    change(table, events.UnitsDone(number, (seconds,), (), False), 0.0)
    change(table, events.RepliesRead(), 0.0)
    return [call for call in table.calls.values() if call.worker == worker]


@pytest.mark.parametrize(("seconds", "taken"), [(0.4, [(1,)]), (0.02, [])])
def test_a_free_worker_takes_a_client_of_a_large_model_if_it_takes_longer_than_its_record(
    seconds: float, taken: list[tuple[int, ...]]
) -> None:
    # Worker 0 has a long client and, behind it, a short one, of so many seconds; worker 1 has two of its own.
    table = started([120.0, 20.0, 27.0, 27.0], LARGE)
    assert units_of(table) == {0: (0,), 1: (2,)}
    assert [call.units for call in done(table, 1, 27 / 20 * seconds)] == [(3,)]
    assert [call.units for call in done(table, 1, 27 / 20 * seconds)] == taken


@pytest.mark.parametrize(("num_bytes", "hands_over"), [(LARGE, False), (1_000_000, True)])
def test_sums_of_a_large_model_are_held_for_longer(num_bytes: int, hands_over: bool) -> None:
    table = started([1.0] * 8, num_bytes)
    assert any(call.hand_over for call in done(table, 0, 3.0)) == hands_over
