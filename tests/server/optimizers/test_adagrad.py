"""G <- G + g^2; x <- x - lr g / (sqrt(G) + eps)."""

from __future__ import annotations

import math

import pytest

from raysim.server.optimizers import adagrad
from raysim.server.optimizers.adagrad import Adagrad
from tests.support.optimizer_path import path, vector

G3 = vector([3, 3], [3])


def test_without_eps_step_k_is_one_over_root_k() -> None:
    steps = path(adagrad.make(Adagrad(eps=0)), vector([0, 0], [0]), [G3] * 3, lr=1.0)
    assert [x for x, _, _ in steps] == pytest.approx(
        [-1, -1 - 1 / math.sqrt(2), -1 - 1 / math.sqrt(2) - 1 / math.sqrt(3)]
    )


def test_eps_is_outside_the_root_and_v0_inside() -> None:
    # sqrt(16 + 9) + 1 = 6
    (moved,) = path(adagrad.make(Adagrad(eps=1, v0=16)), vector([0, 0], [0]), [G3], lr=1.0)
    assert moved == pytest.approx([-0.5] * 3)


def test_with_momentum_the_numerator_is_an_average() -> None:
    (moved,) = path(adagrad.make(Adagrad(eps=0, beta1=0.75)), vector([0, 0], [0]), [G3], lr=1.0)
    assert moved == pytest.approx([-0.25] * 3)


def test_the_accumulator_takes_the_unscaled_gradient() -> None:
    steps = path(adagrad.make(Adagrad(eps=0)), vector([0, 0], [0]), [G3] * 2, lr=1.0, factors=(4.0, 1.0))
    assert steps[-1] == pytest.approx([-4 - 4 / math.sqrt(2)] * 2 + [-1 - 1 / math.sqrt(2)])
