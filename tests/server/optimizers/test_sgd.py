"""x <- x - lr f g."""

from __future__ import annotations

from raysim.server.optimizers import sgd
from tests.support.optimizer_path import path, vector


def test_a_constant_gradient_gives_equal_steps() -> None:
    steps = path(sgd.make(sgd.Sgd()), vector([1, 2], [3]), [vector([1, 0], [-2])] * 3, lr=0.25)
    assert steps == [[0.75, 2, 3.5], [0.5, 2, 4], [0.25, 2, 4.5]]


def test_the_factor_scales_the_step_of_its_group() -> None:
    (moved,) = path(sgd.make(sgd.Sgd()), vector([1, 2], [3]), [vector([1, 1], [1])], lr=0.5, factors=(0.5, 2))
    assert moved == [0.75, 1.75, 2]
