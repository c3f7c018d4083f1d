"""u = m^ / (sqrt(v^) + eps) + wd x; x <- x - lr |x| / |u| u, per group."""

from __future__ import annotations

import math

import pytest

from raysim.server.optimizers import lamb
from raysim.server.optimizers.lamb import Lamb
from raysim.server.optimizers.optimizer import Descent
from tests.support.optimizer_path import LAYOUT, path, vector


def test_without_eps_u_is_the_sign_of_a_constant_gradient() -> None:
    # Group a: u = (1, -1), |u| = sqrt 2, |x| = 5.
    (moved,) = path(lamb.make(Lamb(eps=0)), vector([3, 4], [2]), [vector([9, -0.1], [5])], lr=0.5)
    move = 0.5 * 5 / math.sqrt(2)
    assert moved == pytest.approx([3 - move, 4 + move, 1])


def test_corrections_are_kingmas_at_every_step() -> None:
    # One number per group: the step is lr |x| whatever u is; so x halves at lr 1/2.
    steps = path(lamb.make(Lamb()), vector([0, 0], [8]), [vector([0, 0], [3])] * 3, lr=0.5)
    assert [b for _, _, b in steps] == pytest.approx([4, 2, 1])


def test_eps_is_in_u_and_weight_decay_is_added_to_it() -> None:
    # m^ = 2, v^ = 4, u = 2 / (2 + 2) + x / 4 = 1 for x = 2; r = 2 / 1.
    optimizer = lamb.make(Lamb(eps=2, weight_decay=0.25))
    x, g = vector([0, 0], [2]), vector([0, 0], [2])
    stepped = optimizer.step(x, Descent(LAYOUT, g, 0.25), optimizer.init(x))
    assert stepped.metrics["trust_ratio/b"] == pytest.approx(2)
    assert path(optimizer, x, [g], lr=0.25)[0] == pytest.approx([0, 0, 1.5])


def test_a_group_of_zeros_has_ratio_1() -> None:
    (moved,) = path(lamb.make(Lamb(eps=0)), vector([0, 0], [2]), [vector([2, -4], [0])], lr=0.1)
    assert moved == pytest.approx([-0.1, 0.1, 2])


def test_the_factor_multiplies_the_step() -> None:
    (moved,) = path(lamb.make(Lamb(eps=0)), vector([4, 0], [4]), [vector([1, 0], [1])], lr=0.25, factors=(2.0, 1.0))
    assert moved == pytest.approx([2, 0, 3])
