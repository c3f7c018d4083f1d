"""Client optimizers against torch's own, and the values of first steps that anyone can check."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raysim.client.corrections import choice as corrections
from raysim.client.corrections.mime import MimeLite
from raysim.client.optimizers import choice as optimizers
from raysim.client.optimizers.adagrad import ClientAdagrad
from raysim.client.optimizers.adam import ClientAdam, ClientAdamW
from raysim.client.optimizers.sgd import ClientSgd

BASES: list[tuple[Any, dict[str, torch.Tensor]]] = [("sgd", {}), ("momentum", {"m": torch.tensor([3.0, -1.0])})]
SECTIONS: list[tuple[Any, Any]] = [
    (ClientSgd(momentum=0.7), lambda p: torch.optim.SGD(p, 0.1, momentum=0.7)),
    (ClientAdam(), lambda p: torch.optim.Adam(p, 0.1)),
    (ClientAdam(beta1=0.5, beta2=0.8, eps=1e-2), lambda p: torch.optim.Adam(p, 0.1, (0.5, 0.8), 1e-2)),
    (ClientAdamW(weight_decay=0.3), lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.3)),
    (ClientAdagrad(v0=0.2), lambda p: torch.optim.Adagrad(p, 0.1, initial_accumulator_value=0.2)),
]


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        (optimizers.make(ClientSgd()), {}),
        *((corrections.make(MimeLite(base=base)).client.optimizer, state) for base, state in BASES),
    ],
    ids=["sgd", "mimelite over sgd", "mimelite over momentum"],
)
def test_an_affine_optimizer_steps_as_it_says(optimizer: Any, state: dict[str, torch.Tensor]) -> None:
    """Y - lr (share g + constant), whose state stays."""
    params, gradient = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 4.0])
    share, constant = optimizer.affine(state)
    wanted = params - 0.1 * (share * gradient + (0 if constant is None else constant))
    before = {name: value.clone() for name, value in state.items()}
    optimizer.step(params, gradient, state, 0.1)
    torch.testing.assert_close(params, wanted)
    assert all(torch.equal(state[name], value) for name, value in before.items())


def test_optimizers_with_more_to_a_step_are_not_affine() -> None:
    lite = corrections.make(MimeLite(base="adam")).client.optimizer
    assert lite is not None
    for made in (lite, *(optimizers.make(section) for section, _ in SECTIONS)):
        assert made.affine is None


@pytest.mark.parametrize(("section", "reference"), SECTIONS, ids=lambda o: getattr(o, "name", ""))
@pytest.mark.parametrize("lead", [(), (3,)], ids=["one client", "a stack"])
def test_steps_are_torchs(section: Any, reference: Any, lead: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    params = torch.randn(*lead, 5, dtype=torch.float64)
    own = torch.nn.Parameter(params.clone())
    theirs = reference([own])
    init, step, *_ = optimizers.make(section)
    state = init(params)
    for _ in range(4):
        gradient = torch.randn(params.shape, dtype=torch.float64)
        own.grad = gradient.clone()
        theirs.step()
        step(params, gradient, state, 0.1)
        torch.testing.assert_close(params, own.detach(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("section", [s for s, _ in SECTIONS], ids=lambda s: s.name)
def test_rows_of_a_stack_that_stop_early_stay_as_they_are(section: Any) -> None:
    init, step, *_ = optimizers.make(section)
    params = torch.ones(2, 3, dtype=torch.float64)
    state = init(params)
    step(params, torch.ones_like(params), state, 0.1)
    stopped = params[1].clone()
    step(params[:1], torch.ones(1, 3).double(), {name: value[:1] for name, value in state.items()}, 0.1)
    assert torch.equal(params[1], stopped)
    assert not torch.equal(params[0], stopped)


@pytest.mark.parametrize("section", [ClientAdam(eps=1e-12), ClientAdagrad(eps=1e-12)], ids=lambda s: s.name)
def test_the_first_step_is_the_learning_rate_whatever_the_gradient(section: Any) -> None:
    init, step, *_ = optimizers.make(section)
    params = torch.zeros(2, dtype=torch.float64)
    step(params, torch.tensor([1e-3, -40.0], dtype=torch.float64), init(params), 0.1)
    torch.testing.assert_close(params, torch.tensor([-0.1, 0.1], dtype=torch.float64), rtol=1e-8, atol=0)


def test_adamw_shrinks_without_a_gradient() -> None:
    init, step, adds_decay, *_ = optimizers.make(ClientAdamW(weight_decay=0.5))
    params = torch.full((2,), 4.0)
    step(params, torch.zeros(2), init(params), 0.1)
    assert params.tolist() == pytest.approx([4 * 0.95] * 2)
    assert adds_decay
    assert optimizers.gradient_decay(ClientAdamW()) == 0
    assert optimizers.gradient_decay(ClientAdam(weight_decay=0.2)) == 0.2
