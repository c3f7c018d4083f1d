"""Client optimizers of a script or a package: their steps, and what is refused before the first round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import raysim
from raysim.client.trainers.compared_trainer import STEPS
from raysim.config import part as parts
from raysim.engine.plan.resolve import resolve
from raysim.engine.worker.lockstep_rule import lockstep_key

Make = Callable[..., raysim.Experiment]

OWN: dict[str, Any] = {"optimizer": {"name": "own", "lr": 0.1}, "batch_size": 4, "local_steps": 3}


def test_a_client_optimizer_steps_as_it_says(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def make(section: Any) -> raysim.ClientOptimizer:
        def step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
            params.sub_(state["v"].mul_(section.constants["rho"]).add_(gradient) * lr)

        return raysim.ClientOptimizer(lambda params: {"v": torch.zeros_like(params)}, step)

    momentum = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5}}
    own = {"optimizer": {"name": "own", "lr": 0.1, "constants": {"rho": 0.5}}}
    left = raysim.rounds(experiment(client=momentum), dataset=dataset)
    right = raysim.rounds(experiment(client=own), dataset=dataset, client_optimizer=make)
    for one, other in zip(left, right, strict=True):
        for name, value in one.params.items():
            torch.testing.assert_close(value, other.params[name])


@pytest.mark.parametrize("trainer", ["one_by_one", "fused", "stacked", "vmap", "compiled"])
def test_weight_decay_is_added_once(trainer: str, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    """By the training loop, or by the step: SGD's own decay either way."""

    def added_by_step(section: Any) -> raysim.ClientOptimizer:
        def step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
            params.sub_((gradient + section.weight_decay * params) * lr)

        return raysim.ClientOptimizer(lambda params: {}, step, adds_decay=True)

    def left_to_the_loop(section: Any) -> raysim.ClientOptimizer:
        def step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
            params.sub_(gradient * lr)

        return raysim.ClientOptimizer(lambda params: {}, step)

    engine = {"workers": 0, "trainer": trainer, "dtype": "float64"}
    optimizer = {"lr": 0.1, "weight_decay": 0.5}
    built_in = experiment(client={**OWN, "optimizer": {"name": "sgd", **optimizer}}, engine=engine)
    own = experiment(client={**OWN, "optimizer": {"name": "own", **optimizer}}, engine=engine)
    expected = list(raysim.rounds(built_in, dataset=dataset))
    for make in (added_by_step, left_to_the_loop):
        for one, other in zip(expected, raysim.rounds(own, dataset=dataset, client_optimizer=make), strict=True):
            for name, value in one.params.items():
                torch.testing.assert_close(other.params[name], value, rtol=1e-9, atol=1e-12)


def test_runs_with_an_optimizer_of_their_own_are_trained_apart(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """Its step may not take a rate for each row of a stack."""

    def make(section: Any) -> raysim.ClientOptimizer:
        def step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
            params.add_(gradient, alpha=-lr)

        return raysim.ClientOptimizer(lambda params: {}, step)

    engine = {"workers": 0, "trainer": "stacked"}
    exp = experiment(client={"batch_size": 4}, engine=engine)
    built_in = resolve(exp, dataset=dataset)
    own = resolve(exp, dataset=dataset, client_optimizer=make)
    assert lockstep_key(built_in) is not None
    assert lockstep_key(own) is None


def test_a_lambda_that_writes_in_place_may_return_what_it_wrote(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    make = optimizer(lambda params, gradient, state, lr: params.sub_(lr * gradient))
    exp = experiment(client=OWN)
    (one, *_), (other, *_) = (
        raysim.rounds(exp, dataset=dataset, client_optimizer=each) for each in (make, optimizer(plain_step))
    )
    assert all(torch.equal(value, other.params[name]) for name, value in one.params.items())


def test_an_affine_step_is_not_called(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    """Once `affine` was compared with it, but where local steps are compared with those that call it."""
    calls, counts, made = list[Any](), list[int](), []

    def step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
        calls.append(lr)
        params.sub_(lr * (0.5 * gradient + state["m"]))

    def init(params: Tensor) -> Any:
        return {"m": params * 0.125}

    exp = experiment(client={**OWN, "batch_size": 4}, engine={"workers": 0, "dtype": "float64", "trainer": "fused"})
    known = raysim.ClientOptimizer(init, step, affine=lambda state: (0.5, state["m"]))
    for own in (raysim.ClientOptimizer(init, step), known):
        made.append(list(raysim.rounds(exp, dataset=dataset, client_optimizer=partial(given, own))))
        counts.append(len(calls))
        calls.clear()
    assert counts[0] > counts[1] <= 6 + STEPS
    for one, other in zip(*made, strict=True):
        for name, value in one.params.items():
            torch.testing.assert_close(other.params[name], value, rtol=1e-9, atol=1e-12)


def given(own: raysim.ClientOptimizer, section: Any) -> raysim.ClientOptimizer:
    return own


# Bad input


def optimizer(step: Any, init: Any = lambda params: {"v": torch.zeros_like(params)}) -> Any:
    return lambda section: raysim.ClientOptimizer(init, step)


def plain_step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    params.sub_(lr * gradient)


def rebinding(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    state["v"] = state["v"] + gradient


def raising(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    state["m"].add_(gradient)


def filling_gaps(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    params.add_(1)


def filled(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    state["v"].add_(gradient)


def of_the_whole_stack(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    params.sub_(gradient / gradient.norm() * lr)


def clipped_by_the_largest(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    params.sub_(gradient / gradient.norm(dim=-1).max().clamp(min=1) * lr)


def with_the_smallest(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
    """Whoever moves far hides what a row of small numbers gets from it."""
    params.sub_((gradient + 1e-4 * gradient.norm(dim=-1).min() * params) * lr)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda section: "sgd", r"that returns a raysim.ClientOptimizer, .*, but returned 'sgd'"),
        (
            optimizer(lambda params, gradient, state, lr: params - lr * gradient),
            r"step must .* nothing, .* of shape",
        ),
        (optimizer(rebinding), r"step must write to the tensors of state in place, but put others there"),
        (
            optimizer(raising),
            r"client_optimizer=: step raised KeyError \(.*\): 'm'",
        ),
        (optimizer(filling_gaps), r"step must leave zeros between the parameters"),
        (optimizer(raising, lambda params: None), r"init must return a dict from names to tensors, but returned None"),
        (optimizer(raising, lambda params: {"start": params}), "'start' has that of params"),
        (optimizer(raising, lambda params: {"start": params[..., 1:]}), "'start' has that of params"),
        (optimizer(raising, lambda params: dict.fromkeys(("a", "b"), params * 0)), "'b' has that of 'a'"),
        (optimizer(raising, lambda params: {"v": params.mul_(0)}), r"init must not write .* wrote to argument 1"),
    ],
)
@pytest.mark.parametrize("trainer", ["one_by_one", "stacked"])
def test_what_is_wrong_is_refused_before_the_first_round(
    make: Any, message: str, trainer: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(client=OWN, engine={"workers": 0, "trainer": trainer})
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.rounds(exp, dataset=dataset, client_optimizer=make)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (optimizer(of_the_whole_stack), r"step each row of a stack \(K, P\) as it does one client's"),
        (optimizer(clipped_by_the_largest), r"step each row of a stack"),
        (optimizer(with_the_smallest), r"step each row of a stack"),
        (optimizer(filled, lambda params: {"v": params.new_zeros(params.shape[-1])}), r"a row of 'v' for each row"),
    ],
)
def test_rows_are_asked_for_where_clients_are_trained_together(
    make: Any, message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.rounds(
            experiment(client=OWN, engine={"workers": 0, "trainer": "stacked"}), dataset=dataset, client_optimizer=make
        )


def test_one_client_at_a_time_may_look_at_its_whole_gradient(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(client=OWN, engine={"workers": 0, "trainer": "fused"})
    assert list(raysim.rounds(exp, dataset=dataset, client_optimizer=optimizer(of_the_whole_stack)))


class Rateless(raysim.Section):
    """A package's section without a rate."""

    name: Literal["rateless"] = "rateless"


def test_a_package_s_section_without_a_rate_is_refused(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = raysim.Part("client_optimizer", "rateless", Rateless, lambda section: None)
    monkeypatch.setattr(parts, "load_installed", lambda: ((parts.Installed(theirs, "theirs"),), ()))
    with pytest.raises(raysim.ExperimentError, match=r"a client optimizer needs a key lr.* 'rateless' has \['name'\]"):
        experiment(client={"optimizer": {"name": "rateless"}})


def test_an_affine_that_is_not_the_step_is_refused(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    own = raysim.ClientOptimizer(lambda params: {}, plain_step, affine=lambda state: (0.5, None))
    with pytest.raises(raysim.ExperimentError, match="affine must return share and constant of every step"):
        next(raysim.rounds(experiment(client=OWN), dataset=dataset, client_optimizer=lambda section: own))
