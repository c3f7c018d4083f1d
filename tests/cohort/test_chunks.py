"""Chunks: every member once, longest first, whatever the workers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from raysim.cohort import chunks


def test_the_longest_clients_come_first_and_ties_keep_the_cohort_order() -> None:
    cohort, steps = np.array([10, 11, 12, 13, 14]), np.array([2, 5, 2, 9, 5])
    # Longest first they are (13, 11), (14, 10), (12,); the first and third go to the left half of the tree.
    assert chunks.plan(cohort, steps, 2) == ((13, 11), (12,), (14, 10))


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 20))
def test_a_plan_holds_every_member_once(steps: list[int], size: int) -> None:
    plan = chunks.plan(np.arange(len(steps)), np.array(steps), size)
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
    assert chunks.level(cohort, costs, 3) == ((11, 10), (13, 12), (15, 14))


def test_nobody_makes_no_chunks() -> None:
    nobody = np.zeros(0, dtype=np.int64)
    assert chunks.plan(nobody, nobody, 4) == chunks.level(nobody, nobody, 0) == ()
