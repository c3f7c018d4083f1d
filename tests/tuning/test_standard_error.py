"""Standard errors, against what can be computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuning import standard_error


def test_clients_of_one_size_have_the_standard_error_of_a_mean() -> None:
    # Accuracies 1/4, 2/4, 3/4 of four examples each: s = 1/4, so s / sqrt(3).
    assert standard_error.over_clients([1, 2, 3], [4, 4, 4]) == pytest.approx(0.25 / math.sqrt(3))


def test_clients_that_are_all_alike_leave_no_doubt() -> None:
    assert standard_error.over_clients([2, 5, 10], [4, 10, 20]) == pytest.approx(0.0)


def test_it_is_the_spread_of_the_figure_over_samples_of_clients() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 40, size=2000)
    hits = rng.binomial(sizes, rng.beta(4, 2, size=2000))
    figures, errors = [], []
    for _ in range(400):
        drawn = rng.choice(2000, size=50, replace=False)
        figures.append(hits[drawn].sum() / sizes[drawn].sum())
        errors.append(standard_error.over_clients(hits[drawn].tolist(), sizes[drawn].tolist()))
    assert np.mean([error for error in errors if error is not None]) == pytest.approx(np.std(figures), rel=0.1)


def test_seeds() -> None:
    assert standard_error.over_seeds([0.1, 0.2, 0.3]) == pytest.approx(0.1 / math.sqrt(3))


def test_one_of_a_kind_tells_nothing() -> None:
    assert standard_error.over_seeds([0.5]) is None
    assert standard_error.over_clients([1], [4]) is None
    assert standard_error.over_clients([0, 0], [0, 0]) is None
