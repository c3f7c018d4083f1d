"""v <- b1 v + g; x <- x - lr v."""

from __future__ import annotations

from raysim.server.optimizers import momentum
from raysim.server.optimizers.momentum import Momentum
from tests.support.optimizer_path import path, vector

ONE = vector([1, 1], [1])


def test_velocities_of_a_constant_gradient_are_partial_sums() -> None:
    # b1 = 1/2: v = 1, 3/2, 7/4.
    steps = path(momentum.make(Momentum(beta1=0.5)), vector([0, 0], [0]), [ONE] * 3, lr=1.0)
    assert [x for x, _, _ in steps] == [-1, -2.5, -4.25]


def test_dampened_velocities_are_averages() -> None:
    # b1 = 1/2: v = 1/2, 3/4, 7/8.
    steps = path(momentum.make(Momentum(beta1=0.5, dampened=True)), vector([0, 0], [0]), [ONE] * 3, lr=1.0)
    assert [x for x, _, _ in steps] == [-0.5, -1.25, -2.125]


def test_the_velocity_is_fed_the_scaled_gradient() -> None:
    steps = path(momentum.make(Momentum(beta1=0.5)), vector([0, 0], [0]), [ONE] * 2, lr=1.0, factors=(2.0, 1.0))
    assert steps == [[-2, -2, -1], [-5, -5, -2.5]]
