"""m <- b1 m + (1 - b1) (g + wd x); x <- x - lr |x| / (|m| + eps) m, per group."""

from __future__ import annotations

import pytest

from raysim.server.optimizers import lars
from raysim.server.optimizers.lars import Lars
from raysim.server.optimizers.optimizer import Descent
from tests.support.optimizer_path import LAYOUT, path, vector


def test_without_eps_every_group_shrinks_by_lr_times_its_norm() -> None:
    # |a| = 5, gradient along a; |b| = 2 whatever the length of b's gradient.
    (moved,) = path(lars.make(Lars(eps=0)), vector([3, 4], [2]), [vector([0.03, 0.04], [700])], lr=0.5)
    assert moved == pytest.approx([1.5, 2, 1])


def test_eps_stands_in_the_ratio_and_there_only() -> None:
    # m = g / 2 = [0, 1] and [1]: r = 5 / (1 + 1) and 2 / (1 + 1).
    optimizer = lars.make(Lars(beta1=0.5, eps=1))
    x, g = vector([3, 4], [2]), vector([0, 2], [2])
    stepped = optimizer.step(x, Descent(LAYOUT, g, 0.1), optimizer.init(x))
    assert stepped.metrics == {"trust_ratio/a": 2.5, "trust_ratio/b": 1.0}
    assert path(optimizer, x, [g], lr=0.1)[0] == pytest.approx([3, 3.75, 1.9])


def test_a_group_of_zeros_has_ratio_1() -> None:
    (moved,) = path(lars.make(Lars(beta1=0.5)), vector([0, 0], [2]), [vector([2, 4], [0])], lr=0.1)
    assert moved == pytest.approx([-0.1, -0.2, 2])


def test_weight_decay_enters_the_momentum() -> None:
    # m = (0 + 1/2 x) / 2 is along x.
    (moved,) = path(
        lars.make(Lars(beta1=0.5, eps=0, weight_decay=0.5)), vector([3, 4], [2]), [vector([0, 0], [0])], lr=0.5
    )
    assert moved == pytest.approx([1.5, 2, 1])


def test_the_factor_multiplies_the_step_and_not_the_momentum() -> None:
    steps = path(lars.make(Lars(eps=0)), vector([4, 0], [4]), [vector([1, 0], [1])] * 2, lr=0.25, factors=(2.0, 1.0))
    assert steps == [pytest.approx([2, 0, 3]), pytest.approx([1, 0, 2.25])]
