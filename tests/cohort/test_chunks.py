"""Chunks: every member once, longest first, whatever the workers."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.cohort import chunks


def test_the_longest_clients_come_first_and_ties_keep_the_cohort_order() -> None:
    cohort, steps = np.array([10, 11, 12, 13, 14]), np.array([2, 5, 2, 9, 5])
    # Longest first they are (13, 11), (14, 10), (12,); the first and third go to the left half of the tree.
    assert chunks.plan(cohort, steps, 8 * steps, 2) == ((13, 11), (12,), (14, 10))


def test_of_clients_with_as_many_local_steps_the_largest_are_together() -> None:
    cohort, steps, costs = np.arange(5), np.ones(5, dtype=np.int64), np.array([3, 50, 4, 60, 5])
    assert set(chunks.plan(cohort, steps, costs, 2)) == {(3, 1), (4, 2), (0,)}


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 20))
def test_a_plan_holds_every_member_once(steps: list[int], size: int) -> None:
    plan = chunks.plan(np.arange(len(steps)), np.array(steps), np.array(steps), size)
    assert sorted(member for chunk in plan for member in chunk) == list(range(len(steps)))
    assert sorted(len(chunk) for chunk in plan)[1:] == [size] * (len(plan) - 1)
    assert all(1 <= len(chunk) <= size for chunk in plan)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 20))
def test_dealing_gives_every_member_once_and_no_chunk_too_many(costs: list[int], num_chunks: int) -> None:
    dealt = chunks.level(np.arange(len(costs)), np.array(costs), num_chunks)
    assert sorted(member for chunk in dealt for member in chunk) == list(range(len(costs)))
    assert all(1 <= len(chunk) <= -(-len(costs) // num_chunks) for chunk in dealt)


def test_dealing_levels_the_costs() -> None:
    cohort, costs = np.array([10, 11, 12, 13, 14, 15]), np.array([1, 9, 2, 8, 3, 7])
    assert chunks.level(cohort, costs, 3) == ((11, 10), (15, 14), (13, 12))


def test_two_workers_get_halves_of_about_equal_cost_where_chunks_are_few_and_unequal() -> None:
    cohort, costs = np.array([10, 11, 12, 13]), np.array([20, 60, 10, 20])
    assert chunks.level(cohort, costs, 4) == ((11,), (12,), (10,), (13,))


def cost(chunk: chunks.Chunk, steps: np.ndarray, overhead: int) -> int:
    """Of a chunk of the clients 0, 1, ... whose local steps have one example each."""
    return overhead * int(steps[list(chunk)].max()) + int(steps[list(chunk)].sum())


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=60),
    st.integers(0, 40),
    st.integers(1, 12),
    st.integers(1, 20),
)
def test_a_cut_holds_every_member_once_and_no_chunk_too_many(
    sizes: list[int], overhead: int, num_chunks: int, most: int
) -> None:
    steps = np.array(sizes)
    cut = chunks.stacks(np.arange(len(steps)), steps, steps, overhead, num_chunks, most)
    assert sorted(member for chunk in cut for member in chunk) == list(range(len(steps)))
    assert all(1 <= len(chunk) <= most for chunk in cut)
    assert len(cut) <= max(num_chunks, -(-len(steps) // most))


@given(st.lists(st.integers(1, 100), min_size=2, max_size=9), st.integers(0, 40), st.integers(1, 4))
def test_the_costliest_chunk_of_a_cut_is_as_cheap_as_a_cut_into_so_many_can_make_it(
    sizes: list[int], overhead: int, num_chunks: int
) -> None:
    steps = np.array(sorted(sizes, reverse=True))
    cut = chunks.stacks(np.arange(len(steps)), steps, steps, overhead, num_chunks, len(steps))
    places = range(1, len(steps))
    costliest = min(
        max(cost(tuple(range(a, b)), steps, overhead) for a, b in pairwise([0, *inner, len(steps)]))
        for num_inner in range(len(cut))
        for inner in combinations(places, num_inner)
    )
    assert max(cost(chunk, steps, overhead) for chunk in cut) == costliest


def test_few_long_clients_weigh_as_much_as_many_short_ones() -> None:
    steps = np.array([40] * 4 + [4] * 45)
    assert sorted(map(len, chunks.stacks(np.arange(49), steps, 10 * steps, 10, 2, 64))) == [4, 45]


def test_two_workers_are_done_sooner_than_with_chunks_of_one_size_where_sizes_differ() -> None:
    steps = np.maximum(1, np.random.default_rng(0).lognormal(2, 0.9, 100)).astype(np.int64)
    everyone = np.arange(100)
    cut, of_one_size = chunks.stacks(everyone, steps, steps, 24, 3, 100), chunks.plan(everyone, steps, steps, 34)
    longest, before = (max(cost(chunk, steps, 24) for chunk in made) for made in (cut, of_one_size))
    assert longest < 0.8 * before


@pytest.mark.parametrize(("num_clients", "at_least"), [(1, 1), (100, 2), (400, 4), (800, 8), (2000, 16)])
def test_large_cohorts_have_chunks_for_many_workers(num_clients: int, at_least: int) -> None:
    steps = np.full(num_clients, 10)
    allowed = max(3, num_clients // 64)
    assert len(chunks.stacks(np.arange(num_clients), steps, 10 * steps, 241, allowed, 512)) >= at_least


def test_the_more_overhead_there_is_the_fewer_chunks_there_are() -> None:
    steps = np.full(64, 10)
    num = [len(chunks.stacks(np.arange(64), steps, 10 * steps, overhead, 8, 64)) for overhead in (0, 100, 300, 10_000)]
    assert num == sorted(num, reverse=True)
    assert (num[0], num[-1]) == (8, 1)
    assert len(set(num)) > 2


def test_chunks_that_cost_little_beside_their_call_are_few_and_others_as_many_as_may_be() -> None:
    numbers = [chunks.enough(work, 900, 8) for work in (1, 700, 1_500, 3_000, 10_000_000)]
    assert numbers == sorted(numbers)
    assert (numbers[0], numbers[-1]) == (1, 8)
    assert len(set(numbers)) > 2
    assert chunks.enough(10_000_000, 900, 6) == 6
    assert chunks.enough(1, 0, 1) == 1


@given(st.integers(1, 10**6), st.integers(0, 2000), st.integers(1, 40))
def test_no_number_of_workers_waits_for_more_than_twice_its_best(work: int, call: int, most: int) -> None:
    """Of 1, 2, 4, ... chunks; a number that suits one of them best may be sixteen times too slow for another."""

    def time(num: int, workers: int) -> float:
        return max(call + work / num, (num * call + work) / workers)

    numbers = {min(most, 1 << power) for power in range(7)}
    chosen = chunks.enough(work, call, most)
    assert chosen in numbers
    for workers in chunks.WORKER_COUNTS:
        assert time(chosen, workers) <= 2 * min(time(num, workers) for num in numbers)


def test_nobody_makes_no_chunks() -> None:
    nobody = np.zeros(0, dtype=np.int64)
    assert chunks.plan(nobody, nobody, nobody, 4) == chunks.level(nobody, nobody, 0) == ()
    assert chunks.stacks(nobody, nobody, nobody, 7, 3, 4) == ()
