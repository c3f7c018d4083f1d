"""When workers hand over what they hold: as few records as the tree allows, and none that a loss would make dear."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raysim.cohort.tree import TreeFold
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.rules import change
from raysim.engine.on_ray.executor.table import DispatchTable, JobFacts, Ping, Work

Sent = tuple[int, int]


def records(units: int, unit_s: float, *, before: Sequence[int] = (), after: Sequence[int] = (0, 1)) -> list[Sent]:
    """Have two workers carry out a job whose units take `unit_s` each; returns (worker, records) for each hand-over.

    before, after: the workers that have started when the job is submitted, and those that start right afterwards.
    """
    table, held, sent = DispatchTable(("here",), 0.0), {0: set[int](), 1: set[int]()}, list[Sent]()
    change(table, events.CapacityAdded(2), 0.0)
    start(table, before)
    # The longest first is another order than that of the tree.
    costs = [1 + 7 * unit % 16 / 1_000 for unit in range(units)]
    change(table, events.Submitted(1, JobFacts(0, ("train", 0), costs, 1_000_000, "gathered")), 0.0)
    start(table, after)
    now_s = 0.0
    while table.jobs:
        change(table, events.RepliesRead(), now_s)
        assert any(isinstance(call, Work) for call in table.calls.values()), "nobody takes what is left"
        now_s += unit_s
        for number, call in list(table.calls.items()):
            if not isinstance(call, Work):
                continue
            mine = held[call.worker]
            mine |= set(call.units)
            handed = tuple(sorted(mine)) if call.hand_over else ()
            if call.hand_over:
                sent.append((call.worker, whole_parts(units, handed)))
                mine.clear()
            change(table, events.UnitsDone(number, (unit_s,) * len(call.units), handed, False), now_s)
    return sent


def start(table: DispatchTable, workers: Sequence[int]) -> None:
    for number, call in list(table.calls.items()):
        if isinstance(call, Ping) and call.worker in workers:
            change(table, events.Ready(number, "here"), 0.0)


def whole_parts(units: int, done: Sequence[int]) -> int:
    tree: TreeFold[str] = TreeFold(units, str.__add__)
    for unit in done:
        tree.put_leaf("x", unit)
    return len(tree.take())


@pytest.mark.parametrize("before", [(), (0,), (1,), (0, 1)])
def test_each_worker_hands_over_half_the_tree_also_if_it_was_starting(before: Sequence[int]) -> None:
    assert sorted(records(16, 0.2, before=before)) == [(0, 1), (1, 1)]


@pytest.mark.parametrize("before", [(), (0,)])
def test_a_worker_that_never_starts_leaves_its_half_to_the_other(before: Sequence[int]) -> None:
    assert records(16, 0.1, before=before, after=(0,)) == [(0, 1)]


def test_however_little_is_left_it_does_not_wait_for_a_worker_that_starts() -> None:
    """To send a second record would take longer than all units, which is a reason not to take a working one's."""
    assert records(16, 0.0001, before=(0,), after=()) == [(0, 1)]


def test_a_job_is_as_long_as_it_takes_those_that_have_started() -> None:
    """One worker of two is there, and works for 12 s: behind six of eight units 3 s are left, and not half as many."""
    assert len(records(8, 1.5, after=(0,))) == 4


def test_what_soon_is_a_whole_half_is_not_handed_over_in_parts() -> None:
    """Each works for 2.4 s, and has held its results for longer than two before its last unit."""
    assert sorted(records(16, 0.3)) == [(0, 1), (1, 1)]


def test_results_of_a_long_job_are_handed_over_in_between() -> None:
    """Each works for 12 s; no more than about four seconds of it may be lost."""
    assert 2 * 3 <= len(records(16, 1.5)) <= 2 * 8
