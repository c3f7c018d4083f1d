"""`raysim.testing.check_part`: built-in parts pass it, and a part that breaks an invariant is told which, and where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import raysim
from raysim.client.corrections.make import CORRECTIONS
from raysim.client.optimizers import choice as client_optimizers
from raysim.config.part import Choice, Part
from raysim.server import Descent, ServerOptimizer, Stepped
from raysim.server.optimizers import choice as server_optimizers
from raysim.testing import ContractError, check_part

CHOICES: tuple[Choice[Any], ...] = (CORRECTIONS, client_optimizers.OPTIMIZERS, server_optimizers.OPTIMIZERS)
KEYS: dict[str, dict[str, Any]] = {
    "prox": {"mu": 0.1},
    "feddyn": {"mu": 0.1},
    "adabest": {"mu": 0.1, "beta": 0.8},
    "feddane": {"mu": 0.1},
}
"""Of the parts whose sections have keys without defaults."""


def built_in() -> list[Part]:
    """Every built-in part, as a package's would be."""
    return [
        Part(choice.kind, section.model_fields["name"].default, section, make)
        for choice in CHOICES
        for section, make in choice.makers.items()
    ]


@pytest.mark.parametrize("part", built_in(), ids=lambda part: f"{part.kind}-{part.name}")
def test_a_built_in_part_keeps_the_contract(part: Part) -> None:
    check_part(part, KEYS.get(part.name), workers=(0,))


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


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (correction(offset=writes, after=kept), r"offset writes to its argument 0.state.*started.state.add_\(1\)"),
        (correction(offset=draws, after=kept), r"offset draws from torch's global.*torch.randn\(started.state.shape"),
        (correction(offset=draws_by_numpy, after=kept), r"offset draws from NumPy's global.*np.random.random"),
        (Part("server_optimizer", "own", raysim.OwnPart, server_optimizer), r"gaps of the flat vector"),
        (correction(offset=Counts(), after=kept), r"keeps something that is not in its state"),
    ],
    ids=["writes", "draws", "numpy", "gaps", "counts"],
)
def test_what_breaks_an_invariant_is_told_with_its_line(part: Part, said: str) -> None:
    with pytest.raises(ContractError, match=said):
        check_part(part, workers=(0,))


def test_a_part_whose_numbers_depend_on_the_dtype_is_told() -> None:
    def make(section: Any) -> raysim.server.ServerOptimizer:
        def step(params: Tensor, descent: Descent, state: Any) -> Stepped:
            eps = 1e6 * torch.finfo(params.dtype).eps
            return Stepped(params - descent.lr * descent.g / (descent.g.abs() + eps), {})

        return ServerOptimizer(lambda params: {}, step)

    with pytest.raises(ContractError, match=r"differs by .* between float32 and float64.*not in that of its arguments"):
        check_part(Part("server_optimizer", "own", raysim.OwnPart, make), workers=(0,))


def test_keys_that_the_section_does_not_have_are_refused() -> None:
    with pytest.raises(raysim.ExperimentError, match="unknown key 'mü'"):
        check_part(next(part for part in built_in() if part.name == "prox"), {"mü": 1})
