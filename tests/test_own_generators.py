"""Draws by a script's own generators are noticed by the generator's state, where they change no result yet."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import raysim
from raysim.config.own_generators import OwnGenerators, found
from raysim.engine.plan.resolve import resolve
from tests.support.executors import bits

Make = Callable[..., raysim.Experiment]

OF_MODULE = np.random.default_rng(1)


def draw_by_numpy(rng: Any) -> int:
    return int(rng.integers(1 << 40) == 0)


def draw_by_torch(generator: torch.Generator) -> int:
    return int(torch.randint(1 << 40, (), generator=generator)) == 0


def draw_by_python(rng: random.Random) -> int:
    return int(rng.random() > 2)


NEVER: dict[str, Callable[[], int]] = {
    "numpy": partial(draw_by_numpy, np.random.default_rng(1)),
    "numpy's older": partial(lambda rng: int(rng.random_sample() > 2), np.random.RandomState(1)),
    "torch": partial(draw_by_torch, torch.Generator().manual_seed(1)),
    "python": partial(draw_by_python, random.Random(1)),
    "of the module": lambda: draw_by_numpy(OF_MODULE),
}
"""Each draws, and returns 0."""


class Noisy(nn.Module):
    def __init__(self, drawn: Callable[[], int]) -> None:
        super().__init__()
        self.layer, self.drawn = nn.Linear(5, 3), drawn

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x) * (1 + self.drawn())
        return outputs


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def parts(drawn: Callable[[], int]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """By keyword: the part, and what of the experiment it takes."""

    def step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
        params.sub_(gradient * lr * (1 + drawn()))

    def server_step(params: Tensor, descent: Any, state: Any) -> raysim.server.Stepped:
        return raysim.server.Stepped(params - descent.g * (1 + drawn()), state)

    client = {"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 4}
    return {
        "model": ({"model": lambda: Noisy(drawn)}, {"model": None}),
        "loss": ({"loss": lambda outputs, targets: losses(outputs, targets) * (1 + drawn())}, {}),
        "objective": ({"objective": lambda module, x, y, at: losses(module(x), y) * (1 + drawn())}, {}),
        "correction": (
            {"correction": lambda section: raysim.Correction(raysim.ClientHalf(upload=lambda at: at.delta + drawn()))},
            {},
        ),
        "client_optimizer": (
            {"client_optimizer": lambda section: raysim.ClientOptimizer(lambda params: {}, step)},
            {"client": {**client, "optimizer": {"name": "own", "lr": 0.1}}},
        ),
        "transform": (
            {"transform": lambda section: raysim.Transform(lambda at: at.delta * (1 + drawn()))},
            {},
        ),
        "weighting": ({"weighting": lambda facts: 1.0 + drawn()}, {}),
        "aggregator": ({"aggregator": raysim.Coordinatewise(lambda rows, weights: rows.mean(0) * (1 + drawn()))}, {}),
        "server_optimizer": (
            {"server_optimizer": lambda section: raysim.server.ServerOptimizer(lambda params: {}, server_step)},
            {},
        ),
        "metrics": ({"metrics": {"mine": lambda outputs, targets: outputs[:, 0] * (1 + drawn())}}, {}),
        "sampler": ({"sampler": lambda at: [*range(1, at.size), at.size + drawn() % 2]}, {}),
    }


@pytest.mark.parametrize("drawn", NEVER)
@pytest.mark.parametrize("keyword", parts(lambda: 0))
def test_a_part_that_draws_from_its_own_generator_is_refused(
    keyword: str, drawn: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    passed, sections = parts(NEVER[drawn])[keyword]
    with pytest.raises(raysim.RaysimError, match="from a generator of its own"):
        resolve(experiment(**sections), dataset=dataset, **passed)


@pytest.mark.parametrize("drawn", [random.random, np.random.random, lambda: torch.rand(())])
@pytest.mark.parametrize("keyword", parts(lambda: 0))
def test_a_part_that_draws_from_a_global_generator_is_refused(
    keyword: str, drawn: Callable[[], Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    passed, sections = parts(lambda: int(drawn() > 2))[keyword]
    with pytest.raises(raysim.RaysimError, match="drew from a global generator"):
        resolve(experiment(**sections), dataset=dataset, **passed)


def test_a_part_that_seeds_its_generator_at_every_call_is_not_refused(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    generator = torch.Generator()

    def seeded() -> int:
        generator.manual_seed(3)
        return draw_by_torch(generator)

    assert found(seeded) == [generator]
    for keyword in ("model", "loss", "objective", "correction", "client_optimizer", "transform", "weighting"):
        passed, sections = parts(seeded)[keyword]
        resolve(experiment(**sections), dataset=dataset, **passed)


def test_weights_that_are_drawn_later_are_an_error(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    """The tried client has a loss of 1."""

    def weighting(facts: raysim.ClientFacts) -> float:
        return 1.0 if facts.loss == 1 else 1.0 + (random.random() > 2)

    with pytest.raises(raysim.ExperimentError, match="weighting= drew from a global generator"):
        list(raysim.rounds(experiment(rounds=1), dataset=dataset, weighting=weighting))


def test_draws_of_a_chunk_do_not_depend_on_the_chunks_before(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """The first examples are two. The generator stands where it stood when the run was planned, for every chunk."""

    def run(start: int) -> list[Any]:
        rng = random.Random(1)

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            return losses(outputs, targets) * (1.0 if len(targets) < 3 else 1 + rng.random())

        exp = experiment(engine={"workers": 0, "chunk_size": 3}, rounds=2)
        made = raysim.rounds(exp, dataset=dataset, loss=loss)
        return [bits(each) for each in made]

    assert run(0) == run(1)


def test_generators_stand_where_they_stood_for_a_block_alone() -> None:
    rng = random.Random(1)
    own = OwnGenerators(lambda: rng.random())
    first, second = rng.random(), rng.random()
    with own.as_they_stood():
        assert rng.random() == first
    assert own.drew()
    assert rng.random() not in (first, second)


class Holder:
    __slots__ = ("rng",)

    def __init__(self, rng: Any) -> None:
        self.rng = rng

    def drawn(self) -> Any:
        return self.rng.random()


@pytest.mark.parametrize("kind", [random.Random, np.random.default_rng, np.random.RandomState, np.random.PCG64])
def test_generators_are_found_wherever_they_are_held(kind: Callable[[int], Any]) -> None:
    rng = kind(1)

    class OfClass:
        held = rng

        def __call__(self) -> Any:
            return self.held

    def default(given: Any = rng) -> Any:
        return given

    holders: list[Any] = [
        *(rng, [rng], {"a": (rng,)}, {"a": partial(default, rng)}, default, OfClass(), OfClass().__call__),
        *(Holder(rng), Holder(rng).drawn, ((rng, each) for each in "a"), lambda: lambda: rng),
    ]
    for holder in holders:
        assert any(each is rng for each in found(holder)), holder
    assert found(losses, nn.Linear(2, 2), lambda: random.random(), np.random.random, 3, "a", None) == []
