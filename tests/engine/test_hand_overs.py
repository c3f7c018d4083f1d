"""When workers hand over what they hold: as few records as the tree allows, and none that a loss would make dear."""

from __future__ import annotations

import pytest

from raysim.cohort.tree import TreeFold
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.rules import change
from raysim.engine.on_ray.executor.table import DispatchTable, JobFacts, Ping, Work

LATE = 1
"""The worker that is late where one is."""


def records(units: int, unit_s: float, *, late: bool = False, ready: bool = False) -> list[tuple[int, int]]:
    """Have two workers carry out a job whose units take `unit_s` each; returns (worker, records) for each hand-over.

    late: worker `LATE` never starts. ready: both have started before the job is submitted.
    """
    table, held, sent = DispatchTable(("here",), 0.0), {0: set[int](), LATE: set[int]()}, list[tuple[int, int]]()
    change(table, events.CapacityAdded(2), 0.0)
    job = events.Submitted(1, JobFacts(0, ("train", 0), [1.0] * units, 1_000_000, "gathered"))
    if not ready:
        change(table, job, 0.0)
    for number, call in list(table.calls.items()):
        if isinstance(call, Ping) and not (late and call.worker == LATE):
            change(table, events.Ready(number, "here"), 0.0)
    if ready:
        change(table, job, 0.0)
    now_s = 0.0
    while table.jobs:
        change(table, events.RepliesRead(), now_s)
        now_s += unit_s
        for number, call in list(table.calls.items()):
            if not isinstance(call, Work):
                continue
            mine = held[call.worker]
            mine |= set(call.units)
            handed = tuple(sorted(mine)) if call.hand_over else ()
            if call.hand_over:
                sent.append((call.worker, len(whole_parts(units, handed))))
                mine.clear()
            change(table, events.UnitsDone(number, (unit_s,) * len(call.units), handed, False), now_s)
    return sent


def whole_parts(units: int, done: tuple[int, ...]) -> list[tuple[tuple[int, int], str]]:
    tree: TreeFold[str] = TreeFold(units, str.__add__)
    for unit in done:
        tree.put_leaf("x", unit)
    return tree.take()


@pytest.mark.parametrize("ready", [False, True])
def test_each_worker_hands_over_half_the_tree_also_if_it_was_starting(ready: bool) -> None:
    assert sorted(records(16, 0.2, ready=ready)) == [(0, 1), (1, 1)]


def test_a_worker_that_never_starts_leaves_its_half_to_the_other() -> None:
    assert records(16, 0.1, late=True) == [(0, 1)]


def test_what_soon_is_a_whole_half_is_not_handed_over_in_parts() -> None:
    """Each works for 2.4 s, and has held its results for longer than two before its last unit."""
    assert sorted(records(16, 0.3)) == [(0, 1), (1, 1)]


def test_results_of_a_long_job_are_handed_over_in_between() -> None:
    """Each works for 12 s; no more than about four seconds of it may be lost."""
    assert 2 * 3 <= len(records(16, 1.5)) <= 2 * 8
