"""m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2, and three steps from them."""

from __future__ import annotations

import math

import pytest
import torch

from raysim.server.optimizers import adam
from raysim.server.optimizers.adam import Adam
from tests.support.optimizer_path import path, vector

G2, ZERO = vector([2, 2], [2]), vector([0, 0], [0])


def first(section: Adam, **more: object) -> float:
    return path(adam.make(section), ZERO, [G2], lr=1.0, **more)[0][0]  # type: ignore[arg-type]


def test_kingma_without_eps_makes_every_step_lr_on_a_constant_gradient() -> None:
    section = Adam(beta1=0.5, beta2=0.75, eps=0, bias_correction="kingma")
    assert [x for x, _, _ in path(adam.make(section), ZERO, [G2] * 3, lr=0.5)] == pytest.approx([-0.5, -1.0, -1.5])


def test_the_three_forms_at_the_first_step() -> None:
    # m = 1, v = 1; 1 - b1 = 1/2, 1 - b2 = 1/4.
    keys = {"beta1": 0.5, "beta2": 0.75, "eps": 1.0}
    assert first(Adam(**keys)) == pytest.approx(-1 / (1 + 1))
    assert first(Adam(**keys, bias_correction="epsilon_hat")) == pytest.approx(-(1 / 2) / (1 / 2) / (1 + 1))
    assert first(Adam(**keys, bias_correction="kingma")) == pytest.approx(-2 / (2 + 1))


def test_epsilon_hat_and_kingma_agree_without_eps() -> None:
    one, other = (Adam(eps=0, bias_correction=form) for form in ("epsilon_hat", "kingma"))
    gradients = [G2, -G2, 3 * G2]
    assert path(adam.make(one), ZERO, gradients, lr=0.1)[-1] == pytest.approx(
        path(adam.make(other), ZERO, gradients, lr=0.1)[-1]
    )


def test_kingma_is_torch_adam() -> None:
    theirs = torch.nn.Parameter(torch.tensor([1.0, -1.0], dtype=torch.float64))
    optimizer = torch.optim.Adam([theirs], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
    gradients = [vector([k - 2, 0.5 * k], [0]) for k in range(5)]
    for g in gradients:
        theirs.grad = g[:2].clone()
        optimizer.step()
    ours = path(adam.make(Adam(bias_correction="kingma")), vector([1, -1], [0]), gradients, lr=0.1)[-1]
    assert ours[:2] == pytest.approx(theirs.tolist(), rel=1e-12)


def test_the_numerator_is_scaled_and_the_second_moment_is_not() -> None:
    section = Adam(beta1=0.5, beta2=0.75, eps=0)
    steps = path(adam.make(section), ZERO, [G2] * 2, lr=1.0, factors=(3.0, 1.0))
    # m = f, 3 f / 2; v = 1, 7 / 4.
    expected = -1 - 1.5 / math.sqrt(1.75)
    assert steps[-1] == pytest.approx([3 * expected, 3 * expected, expected])
