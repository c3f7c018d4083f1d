"""Which runs make gradients of depthwise kernels in C, and that a run goes on as it began."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client.trainers.kernel.depthwise import SOURCE
from raysim.engine.plan.resolve import resolve
from raysim.errors import ModelError, RunFolderError
from tests.support.kernel import needs_kernel, without_library


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


class Depth(nn.Module):
    """A convolution, depthwise unless it has other groups, with a way around."""

    def __init__(self, groups: int = 24) -> None:
        super().__init__()
        self.first, self.out = nn.Conv2d(1, 24, 1), nn.Linear(24, 4)
        self.depth = nn.Conv2d(24, 24, 5, padding=2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return cast(Tensor, self.out((h + self.depth(h)).mean((2, 3))))


@pytest.fixture
def images() -> raysim.FederatedDataset:
    draw = np.random.default_rng(0)

    def client(n: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.standard_normal((n, 1, 12, 12), dtype=np.float32), draw.integers(0, 4, n)

    return raysim.FederatedDataset.from_clients(
        train={str(i): client(5 + i) for i in range(6)}, test={str(i): client(3) for i in range(6)}
    )


def experiment(rounds: int = 3, **engine: Any) -> raysim.Experiment:
    given: dict[str, Any] = {
        "name": "depthwise",
        "client": {"batch_size": 4},
        "cohort": {"size": 3},
        "rounds": rounds,
        "engine": {"workers": 0, **engine},
    }
    return raysim.Experiment.model_validate(given)


@pytest.mark.parametrize(
    ("groups", "engine", "in_c"),
    [
        (24, {}, True),
        (24, {"trainer": "recorded"}, True),
        (24, {"trainer": "one_by_one"}, True),
        (24, {"dtype": "float64"}, False),
        (24, {"precision": "bf16"}, False),
        (24, {"threads": 2}, False),
        (12, {}, False),
    ],
)
def test_what_is_made_in_c(images: raysim.FederatedDataset, groups: int, engine: dict[str, Any], in_c: bool) -> None:
    plan = resolve(experiment(**engine), dataset=images, model=partial(Depth, groups))
    assert plan.choice.kernels.depthwise == in_c
    assert plan.choice.record.get("depthwise", False) == in_c


@pytest.mark.parametrize(("engine", "trainer"), [({}, "interpreted"), ({"dtype": "float64"}, "recorded")])
def test_large_maps_are_interpreted_only_where_it_is_made_in_c(
    images: raysim.FederatedDataset, engine: dict[str, Any], trainer: str
) -> None:
    # Its positions see 864,000 numbers of 34,560.
    client = experiment().client.model_copy(update={"batch_size": 10})
    large = experiment(**engine).model_copy(update={"client": client})
    assert resolve(large, dataset=images, model=Depth).choice.trainer == trainer
    if trainer == "recorded":
        named = large.model_copy(update={"engine": large.engine.model_copy(update={"trainer": "interpreted"})})
        with pytest.raises(ModelError, match="torch is faster there"):
            resolve(named, dataset=images, model=Depth)


def params(run: raysim.Run) -> torch.Tensor:
    return torch.cat([one.flatten() for one in run.params.values()])


def test_a_run_goes_on_without_it_if_it_began_without_it(
    images: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        without_library(patch, SOURCE)
        whole = raysim.run(experiment(), dataset=images, model=Depth, path=tmp_path / "whole")
        raysim.run(experiment(2), dataset=images, model=Depth, path=tmp_path / "resumed")
    on = raysim.run(experiment(), dataset=images, model=Depth, path=tmp_path / "resumed", resume=True)
    assert torch.equal(params(on), params(whole))
    new = raysim.run(experiment(), dataset=images, model=Depth, path=tmp_path / "with")
    assert not torch.equal(params(new), params(whole))


def test_a_run_that_began_with_it_does_not_go_on_without_it(
    images: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = raysim.run(experiment(), dataset=images, model=Depth, path=tmp_path / "whole")
    raysim.run(experiment(2), dataset=images, model=Depth, path=tmp_path / "resumed")
    with monkeypatch.context() as patch:
        without_library(patch, SOURCE)
        with pytest.raises(RunFolderError, match="depthwise convolutions were computed by a compiled library"):
            raysim.run(experiment(), dataset=images, model=Depth, path=tmp_path / "resumed", resume=True)
    on = raysim.run(experiment(), dataset=images, model=Depth, path=tmp_path / "resumed", resume=True)
    assert torch.equal(params(on), params(whole))
