"""x <- x - lr f g / |g|."""

from __future__ import annotations

import pytest

from raysim.server.optimizers import normalized
from raysim.server.optimizers.normalized import Normalized
from tests.support.optimizer_path import path, vector


def test_every_step_has_length_lr() -> None:
    # |(2, 1, -2)| = 3, over both groups together.
    steps = path(
        normalized.make(Normalized()), vector([0, 0], [0]), [vector([2, 1], [-2]), vector([20, 10], [-20])], lr=3.0
    )
    assert steps == [pytest.approx([-2, -1, 2]), pytest.approx([-4, -2, 4])]


def test_the_norm_is_of_the_unscaled_gradient() -> None:
    (moved,) = path(
        normalized.make(Normalized()), vector([0, 0], [0]), [vector([2, 1], [-2])], lr=3.0, factors=(2.0, 0.5)
    )
    assert moved == pytest.approx([-4, -2, 1])


def test_a_zero_gradient_is_no_step() -> None:
    (moved,) = path(normalized.make(Normalized()), vector([1, 2], [3]), [vector([0, 0], [0])], lr=3.0)
    assert moved == [1, 2, 3]
