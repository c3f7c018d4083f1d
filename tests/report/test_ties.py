"""Ranks: numbers that only rounding parts have one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import rankdata

from raysim.report.ties import levelled


@pytest.mark.parametrize("seed", range(20))
def test_ranks_are_those_of_exact_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tenths, others = rng.integers(1, 20, size=(2, 3, 15))
    exact = np.abs(tenths.sum(0) - others.sum(0))
    rounded = np.abs(np.mean(tenths / 10, axis=0) - np.mean(others / 10, axis=0))
    assert rankdata(levelled(rounded, scale=2.0)).tolist() == rankdata(exact).tolist()


def test_rounding_parts_equal_differences() -> None:
    differences = [0.85 - 0.8, 0.75 - 0.7, 0.3]
    assert rankdata(differences).tolist() == [1, 2, 3]
    assert rankdata(levelled(differences, scale=1.0)).tolist() == [1.5, 1.5, 3]


def test_what_is_no_rounding_stays() -> None:
    numbers = [math.inf, 0.1, -math.inf, 0.1 + 1e-9, -math.inf, 3e-17, 0.0]
    assert levelled(numbers, scale=0.1).tolist() == [math.inf, 0.1, -math.inf, 0.1 + 1e-9, -math.inf, 0.0, 0.0]
    assert levelled([], scale=1.0).tolist() == []
