"""Every module that a factory makes is like the first one: compiled code takes its sizes from that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import raysim
from raysim.errors import ModelError
from raysim.models.model import bind, create

Make = Callable[..., raysim.Experiment]


def changing(first: Callable[[], Any], later: Callable[[], Any]) -> Callable[[], Any]:
    """A factory whose first module is not like the others."""
    calls: list[int] = []

    def factory() -> Any:
        calls.append(0)
        return (first if len(calls) == 1 else later)()

    return factory


def frozen() -> nn.Module:
    module = nn.Linear(4, 2)
    module.bias.requires_grad_(False)
    return module


def buffered(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    module = nn.Linear(4, 2)
    module.register_buffer("mask", torch.zeros(*shape, dtype=dtype))
    return module


PAIRS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "wider": (lambda: nn.Linear(4, 2), lambda: nn.Linear(400, 2), r"weight \(trainable, .* \(2, 400\)\)"),
    "narrower": (lambda: nn.Linear(4, 2), lambda: nn.Linear(4, 1), r"weight \(trainable, .* \(1, 4\)\)"),
    "fewer": (lambda: nn.Linear(4, 2), lambda: nn.Linear(4, 2, bias=False), "has nothing"),
    "more": (lambda: nn.Linear(4, 2, bias=False), lambda: nn.Linear(4, 2), r"has nothing where .* has bias"),
    "named": (lambda: nn.Linear(4, 2), lambda: nn.Sequential(nn.Linear(4, 2)), r"has 0\.weight"),
    "dtype": (lambda: nn.Linear(4, 2), lambda: nn.Linear(4, 2).double(), r"torch\.float64"),
    "frozen": (lambda: nn.Linear(4, 2), frozen, r"bias \(frozen"),
    "thawed": (frozen, lambda: nn.Linear(4, 2), r"a later one has bias \(trainable"),
    "buffer": (lambda: buffered(2), lambda: buffered(3), r"mask \(a buffer, torch.float32, shape \(3,\)\)"),
    "buffer's dtype": (lambda: buffered(2), lambda: buffered(2, dtype=torch.bool), r"torch\.bool"),
    "lazy": (lambda: nn.Linear(4, 2), lambda: nn.LazyLinear(2), r"shape \(\)"),
    "no module": (lambda: nn.Linear(4, 2), lambda: None, "returned <class 'NoneType'> later"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_module_unlike_the_first_is_refused(name: str) -> None:
    first, later, what = PAIRS[name]
    model, weights = create(changing(first, later), 0, torch.float32)
    with pytest.raises(ModelError, match=what):
        bind(model, weights, torch.device("cpu"))


def test_modules_alike_are_taken() -> None:
    model, weights = create(lambda: buffered(2), 0, torch.float64)
    for _ in range(2):
        assert bind(model, weights, torch.device("cpu")).get_parameter("weight").dtype == torch.float64


@pytest.mark.parametrize("trainer", ["compiled", "fused", "stacked", "one_by_one"])
def test_no_trainer_takes_one(trainer: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    """Whichever of the modules that a run makes is the odd one."""
    features = dataset.x.shape[0]
    exp = experiment(engine={"workers": 0, "trainer": trainer})
    calls: list[int] = []

    def run(odd: int) -> None:
        def factory() -> nn.Module:
            calls.append(0)
            return nn.Sequential(nn.Linear(9 * features if len(calls) == odd else features, 3))

        calls.clear()
        raysim.run(exp, model=factory, dataset=dataset, path=tmp_path / str(odd))

    run(0)
    assert len(calls) > 2
    for odd in range(2, len(calls) + 1):
        with pytest.raises(ModelError, match="model= must return the same kind of module every time"):
            run(odd)


@pytest.mark.parametrize("threads", [0, 1025, 1_000_000, 2**63, 2**100])
def test_threads_have_a_bound(threads: int, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"engine\.threads"):
        experiment(engine={"threads": threads})
