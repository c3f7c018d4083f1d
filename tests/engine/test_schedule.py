"""Scheduling: contiguous regions of equal cost, then whoever is free takes from the fullest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raysim.engine.on_ray.executor.schedule import Schedule


def test_workers_start_in_regions_of_equal_cost() -> None:
    schedule = Schedule([2, 4, 2, 4, 2, 2], [10, 11])
    assert [schedule.take(10) for _ in range(3)] == [1, 0, 2]  # leaves 0 to 2, the longest first
    assert [schedule.take(11) for _ in range(3)] == [3, 4, 5]


def test_a_worker_that_runs_dry_takes_the_shortest_of_the_fullest_region() -> None:
    schedule = Schedule([3, 3, 3, 4, 1, 4], [0, 1])
    assert [schedule.take(0) for _ in range(4)] == [0, 1, 2, 4]
    assert schedule.take(1) == 3


def test_little_work_is_left_to_its_own_worker() -> None:
    schedule = Schedule([1, 1, 1, 1], [0, 1])
    assert [schedule.take(0, least=3) for _ in range(3)] == [0, 1, None]
    assert [schedule.take(0, least=2), schedule.take(0, least=2)] == [3, None]
    assert schedule.take(1) == 2


def test_what_a_lost_worker_had_is_done_by_others() -> None:
    schedule = Schedule([1, 1], [0, 1])
    assert (schedule.take(0), schedule.take(1), schedule.take(1)) == (0, 1, None)
    schedule.open_region(0, [0])
    assert len(schedule) == 1
    assert schedule.take(7, least=100) == 0


def test_the_region_of_a_lost_worker_is_anyones_however_little_it_is() -> None:
    schedule = Schedule([1, 1], [0, 1])
    schedule.open_region(1, [])
    assert [schedule.take(0, least=100), schedule.take(0, least=100)] == [0, 1]


def test_the_region_of_a_lost_worker_comes_before_a_fuller_one() -> None:
    schedule = Schedule([1, 1, 2], [0, 1, 2])
    schedule.open_region(1, [])
    assert [schedule.take(0, least=100) for _ in range(3)] == [0, 1, None]


def test_of_open_regions_that_with_most_work_left_is_first() -> None:
    schedule = Schedule([2, 2, 1, 1], [0, 1])
    schedule.open_region(0, ())
    schedule.open_region(1, ())
    assert schedule.take(7) in (0, 1)


def test_a_region_that_is_closed_again_is_its_workers_unless_much_is_left() -> None:
    schedule = Schedule([1, 1, 1, 1], [0, 1])
    schedule.open_region(1, ())
    schedule.close_region(1)
    schedule.close_region(0)
    assert [schedule.take(0, least=3) for _ in range(3)] == [0, 1, None]
    assert schedule.take(0, least=2) == 3


@given(st.lists(st.floats(0, 10), min_size=1, max_size=50), st.integers(1, 7), st.data())
def test_every_unit_is_given_once(costs: list[float], workers: int, data: st.DataObject) -> None:
    schedule = Schedule(costs, list(range(workers)))
    taken = []
    while len(schedule):
        taken.append(schedule.take(data.draw(st.integers(0, workers - 1))))
    assert sorted(taken) == list(range(len(costs)))  # type: ignore[type-var]
