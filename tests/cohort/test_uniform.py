"""Uniform sampling: a prefix of one permutation per round."""

from __future__ import annotations

import itertools

import pytest

from raysim.cohort.uniform import prefix


def test_the_whole_population_is_a_permutation_of_it() -> None:
    assert sorted(prefix(0, 3, 50, 50).tolist()) == list(range(50))


@pytest.mark.parametrize("size", [1, 7, 49])
def test_cohorts_are_nested_across_sizes(size: int) -> None:
    assert prefix(0, 3, 50, size).tolist() == prefix(0, 3, 50, 50).tolist()[:size]


def test_rounds_and_seeds_draw_anew() -> None:
    first = prefix(0, 0, 1000, 20).tolist()
    assert prefix(0, 1, 1000, 20).tolist() != first
    assert prefix(1, 0, 1000, 20).tolist() != first


def test_ordered_cohorts_are_uniform() -> None:
    counts = dict.fromkeys(itertools.permutations(range(5), 2), 0)
    rounds = 20_000
    for index in range(rounds):
        counts[tuple(prefix(7, index, 5, 2).tolist())] += 1
    chi_square = sum((count - rounds / 20) ** 2 / (rounds / 20) for count in counts.values())
    assert chi_square < 43.82  # the 0.999 quantile with 19 degrees of freedom


def test_a_billion_clients_cost_no_more_than_the_cohort() -> None:
    cohort = prefix(0, 0, 10**9, 100).tolist()
    assert len(set(cohort)) == 100
    assert max(cohort) > 10**8
