"""v <- v - (1 - b2) g^2 sign(v - g^2)."""

from __future__ import annotations

import math

import pytest

from raysim.server.optimizers import yogi
from raysim.server.optimizers.optimizer import Descent
from raysim.server.optimizers.yogi import Yogi
from tests.support.optimizer_path import LAYOUT, path, values, vector

ONE, ZERO = vector([1, 1], [1]), vector([0, 0], [0])


def seconds(v0: float, gradients: list[float]) -> list[float]:
    optimizer = yogi.make(Yogi(beta2=0.75, v0=v0))
    x, state, seen = ZERO, optimizer.init(ZERO), []
    for k, g in enumerate(gradients, start=1):
        x, state, _ = optimizer.step(x, Descent(LAYOUT, g * ONE, 0.1, k), state)
        seen.append(values(state["v"] - v0)[0] + v0)
    return seen


def test_the_second_moment_moves_by_a_quarter_of_the_square_either_way() -> None:
    assert seconds(0, [2, 2, 1]) == pytest.approx([1, 2, 1.75])


def test_it_stays_where_it_equals_the_square() -> None:
    assert seconds(4, [2, -2]) == [4, 4]


def test_without_momentum_and_eps_constant_gradients_give_rising_roots() -> None:
    # b1 = 0, b2 = 0, v = 1 from the first step on.
    steps = path(yogi.make(Yogi(beta1=0, beta2=0, eps=0)), ONE, [ONE] * 3, lr=0.1)
    assert [x for x, _, _ in steps] == pytest.approx([0.9, 0.8, 0.7])


def test_epsilon_hat_at_the_first_step() -> None:
    section = Yogi(beta1=0.5, beta2=0.75, eps=1, bias_correction="epsilon_hat")
    # m = 1/2, v = 1/4, lr sqrt(1/4) / (1/2) = lr.
    assert path(yogi.make(section), ZERO, [ONE], lr=1.0)[0] == pytest.approx([-0.5 / (0.5 + 1)] * 3)


def test_the_numerator_is_scaled_and_the_second_moment_is_not() -> None:
    (moved,) = path(yogi.make(Yogi(beta1=0.5, beta2=0.75, eps=0)), ZERO, [ONE], lr=1.0, factors=(2.0, 1.0))
    assert moved == pytest.approx([-2 * 0.5 / math.sqrt(0.25)] * 2 + [-1])
