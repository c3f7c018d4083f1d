"""`raysim.testing.check_part`: built-in parts pass it, and a part that breaks an invariant is told which, and where."""

from __future__ import annotations

import random
from typing import Any, Literal, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client.corrections.choice import CORRECTIONS
from raysim.client.objective import OBJECTIVES
from raysim.client.optimizers import choice as client_optimizers
from raysim.client.transform import TRANSFORMS
from raysim.cohort.section import SAMPLERS
from raysim.config.part import Choice, Kind, Part
from raysim.evaluation.metric import METRICS
from raysim.server import Descent, ServerOptimizer, Stepped
from raysim.server.aggregators.choice import AGGREGATORS
from raysim.server.optimizers import choice as server_optimizers
from raysim.server.weighting import WEIGHTINGS
from raysim.testing import ContractError, check_part
from tests.support import own_parts
from tests.support.own_parts import as_it_is, own

CHOICES: tuple[Choice[Any], ...] = (
    AGGREGATORS,
    CORRECTIONS,
    METRICS,
    OBJECTIVES,
    SAMPLERS,
    TRANSFORMS,
    WEIGHTINGS,
    client_optimizers.OPTIMIZERS,
    server_optimizers.OPTIMIZERS,
)
KEYS: dict[str, dict[str, Any]] = {
    "prox": {"mu": 0.1},
    "feddyn": {"mu": 0.1},
    "adabest": {"mu": 0.1, "beta": 0.8},
    "feddane": {"mu": 0.1},
    "fedpd": {"mu": 0.1},
    "trimmed_mean": {"k": 1},
    "krum": {"f": 1},
    "multi_krum": {"f": 1, "m": 2},
    "bernoulli": {"probability": 0.5},
    "cyclic": {"groups": 2},
    "power_of_choice": {"candidates": 9},
    "replay": {"rounds": {"1": ["c1", "c4"]}, "over": {"name": "adafl"}},
}
"""Of the parts whose sections have keys without defaults."""


AROUND: dict[str, dict[str, Any]] = {
    "fedpd": {"cohort.size": 10},
    "local_adaptivity": {"client.optimizer": {"name": "adagrad", "lr": 0.1}},
}
"""What a part needs beside it."""


def built_in() -> list[Part]:
    """Every built-in part, as a package's would be."""
    return [
        Part(choice.kind, section.model_fields["name"].default, section, make)
        for choice in CHOICES
        for section, make in choice.makers.items()
    ]


def test_every_kind_of_part_is_among_the_choices() -> None:
    assert {choice.kind for choice in CHOICES} == set(get_args(Kind))


@pytest.mark.parametrize("part", built_in(), ids=lambda part: f"{part.kind}-{part.name}")
def test_a_built_in_part_keeps_the_contract(part: Part) -> None:
    check_part(part, KEYS.get(part.name), experiment=AROUND.get(part.name), workers=(0,))


@pytest.mark.parametrize("name", own_parts.PARTS)
def test_a_script_s_own_part_keeps_the_contract(name: str) -> None:
    part, constants = own_parts.PARTS[name]
    check_part(part, {"constants": constants}, workers=(0,))


class Pulled(raysim.Section):
    """An objective of a package."""

    name: Literal["pulled"] = "pulled"
    mu: float = 0.1


def test_an_objective_of_a_package_is_given_the_keys_of_its_section() -> None:
    check_part(Part("objective", "pulled", Pulled, lambda section: own_parts.near), {"mu": 0.2}, workers=(0,))


@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("name", ["scaffold", "adam"])
def test_a_built_in_part_keeps_it_on_workers_too(name: str) -> None:
    check_part(next(part for part in built_in() if part.name == name), workers=(0, 2))


def correction(**half: Any) -> Part:
    """A script's correction with this client's half."""

    def make(section: raysim.OwnPart) -> raysim.Correction:
        return raysim.Correction(raysim.ClientHalf(**half))

    return Part("correction", "own", raysim.OwnPart, make)


def writes(started: raysim.ClientStart) -> Tensor:
    total = started.state + 0
    started.state.add_(1)
    return total


def draws(started: raysim.ClientStart) -> Tensor:
    return torch.randn(started.state.shape) * 0


def draws_by_numpy(started: raysim.ClientStart) -> Tensor:
    return started.state * np.random.random()


class Counts:
    """Depends on how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, started: raysim.ClientStart) -> Tensor:
        self.calls += 1
        return started.state + 1e-3 * self.calls * (started.state != 0)


def server_optimizer(section: Any) -> ServerOptimizer:
    def step(params: Tensor, descent: Descent, state: Any) -> Stepped:
        return Stepped(params - descent.g + 1e-3 * float(descent.g.norm()), {})

    return ServerOptimizer(lambda params: {}, step)


def kept(ended: raysim.ClientEnd) -> Tensor:
    return ended.delta


def objective_that_draws(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    return nn.functional.cross_entropy(module(x + torch.randn_like(x)), y, reduction="none")


def objective_that_writes(module: nn.Module, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    at.broadcast["0.weight"].mul_(0.5)
    return nn.functional.cross_entropy(module(x), y, reduction="none")


def jittery(section: Any) -> raysim.ClientOptimizer:
    def step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
        params.sub_(lr * gradient * torch.rand(()))

    return raysim.ClientOptimizer(lambda params: {}, step)


def transform_that_writes(section: Any) -> raysim.Transform:
    def apply(at: raysim.TransformAt) -> raysim.Transformed:
        return raysim.Transformed(at.state.add_(at.delta), at.state)

    return raysim.Transform(apply, keeps_state=True)


def drawn_anywhere(at: raysim.CohortAt) -> Any:
    return np.random.permutation(at.population)[: at.size]


def turns(section: Any) -> raysim.Sampler:
    asked = [0]

    def sample(state: Any, at: raysim.CohortAt) -> Any:
        asked[0] += 1
        # Two calls in a row are the same, as the run itself looks for.
        return (np.arange(at.size) + asked[0] // 3) % at.population

    return raysim.Sampler(lambda at: {}, sample)


def halved(updates: Tensor, weights: Tensor) -> Tensor:
    updates.mul_(0.5)
    return updates.mean(0)


def by_chance(facts: raysim.ClientFacts) -> float:
    return facts.examples * random.random()


def shifted(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs.sub_(outputs.mean())
    return outputs[:, 0]


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (as_it_is("objective", objective_that_draws), r"draws from torch's global.*torch.randn_like\(x\)"),
        (as_it_is("objective", objective_that_writes), r"argument 3.broadcast\['0.weight'\].*mul_\(0.5\)"),
        (own("client_optimizer", jittery), r"step draws from torch's global.*torch.rand\(\(\)\)"),
        (own("transform", transform_that_writes), r"apply writes to its argument 0.state.*at.state.add_"),
        (own("sampler", drawn_anywhere), r"draws from NumPy's global.*np.random.permutation"),
        (own("sampler", turns), r"keeps something that is not in its state"),
        (as_it_is("aggregator", raysim.Coordinatewise(halved)), r"fn writes to its argument 0.*updates.mul_"),
        (as_it_is("weighting", by_chance), r"draws from Python's random module.*random.random\(\)"),
        (as_it_is("metric", shifted), r"writes to its argument 0.*outputs.sub_"),
        (correction(offset=writes, after=kept), r"offset writes to its argument 0.state.*started.state.add_\(1\)"),
        (correction(offset=draws, after=kept), r"offset draws from torch's global.*torch.randn\(started.state.shape"),
        (correction(offset=draws_by_numpy, after=kept), r"offset draws from NumPy's global.*np.random.random"),
    ],
    ids=lambda value: value.kind if isinstance(value, Part) else "",
)
def test_what_breaks_an_invariant_is_told_with_its_line(part: Part, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        check_part(part, workers=(0,))


def test_a_part_that_counts_is_refused_by_the_run_itself() -> None:
    with pytest.raises(raysim.ExperimentError, match=r"ClientHalf\.offset returned something else when it was called"):
        check_part(correction(offset=Counts(), after=kept), workers=(0,))


def test_a_server_optimizer_that_fills_gaps_is_refused_by_the_run_itself() -> None:
    part = Part("server_optimizer", "own", raysim.OwnPart, server_optimizer)
    with pytest.raises(raysim.ExperimentError, match="server_optimizer=: step must leave zeros between"):
        check_part(part, workers=(0,))


def test_a_part_whose_numbers_depend_on_the_dtype_is_told() -> None:
    def make(section: Any) -> raysim.server.ServerOptimizer:
        def step(params: Tensor, descent: Descent, state: Any) -> Stepped:
            eps = 1e6 * torch.finfo(params.dtype).eps
            return Stepped(params - descent.lr * descent.g / (descent.g.abs() + eps), {})

        return ServerOptimizer(lambda params: {}, step)

    with pytest.raises(ContractError, match=r"differs by .* between float32 and float64.*not in that of its arguments"):
        check_part(Part("server_optimizer", "own", raysim.OwnPart, make), workers=(0,))


def test_a_script_s_own_part_has_the_keys_of_its_kind() -> None:
    part = Part("client_optimizer", "own", raysim.OwnPart, lambda section: None)
    takes = r"unknown key 'client.optimizer.lrr': .* takes name, label, constants, lr, weight_decay \(did you mean 'lr'"
    with pytest.raises(raysim.ExperimentError, match=takes):
        check_part(part, {"lrr": 0.01})


def test_keys_that_the_section_does_not_have_are_refused() -> None:
    with pytest.raises(raysim.ExperimentError, match=r"unknown key 'client.correction.mü'"):
        check_part(next(part for part in built_in() if part.name == "prox"), {"mü": 1})
