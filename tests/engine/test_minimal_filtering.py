"""Which runs compute convolutions by minimal filtering, and that a run goes on as it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.client.trainers import construction
from raysim.client.trainers.kernel.winograd import SOURCE
from raysim.engine.plan.resolve import resolve
from raysim.errors import ResourceError, RunFolderError
from tests.support.kernel import needs_kernel, without_library


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


@pytest.fixture
def images() -> raysim.FederatedDataset:
    draw = np.random.default_rng(0)

    def client(n: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.standard_normal((n, 1, 12, 12), dtype=np.float32), draw.integers(0, 4, n)

    return raysim.FederatedDataset.from_clients(
        train={str(i): client(5 + i) for i in range(6)}, test={str(i): client(3) for i in range(6)}
    )


def experiment(**changes: Any) -> raysim.Experiment:
    given: dict[str, Any] = {
        "name": "filtered",
        "model": {"name": "cnn"},
        "client": {"batch_size": 4},
        "cohort": {"size": 3},
        "rounds": 3,
        "engine": {"workers": 0},
    }
    return raysim.Experiment.model_validate({**given, **changes})


@pytest.mark.parametrize(
    ("changes", "filters"),
    [
        ({}, True),
        ({"engine": {"trainer": "recorded"}}, True),
        ({"engine": {"trainer": "interpreted"}}, True),
        ({"engine": {"trainer": "one_by_one"}}, True),
        ({"engine": {"trainer": "stacked"}}, False),
        ({"engine": {"dtype": "float64"}}, False),
        ({"engine": {"precision": "bf16"}}, False),
        ({"engine": {"threads": 2}}, False),
        ({"model": {"name": "mlp", "hidden": [9]}}, False),
    ],
)
def test_what_is_computed_by_minimal_filtering(
    images: raysim.FederatedDataset, changes: dict[str, Any], filters: bool
) -> None:
    plan = resolve(experiment(**changes), dataset=images)
    assert plan.choice.kernels.winograd == filters
    assert plan.choice.record.get("winograd", False) == filters


def params(run: raysim.Run) -> torch.Tensor:
    return torch.cat([one.flatten() for one in run.params.values()])


def test_a_run_goes_on_without_it_if_it_began_without_it(
    images: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        without_library(patch, SOURCE)
        whole = raysim.run(experiment(), dataset=images, path=tmp_path / "whole")
        raysim.run(experiment(rounds=2), dataset=images, path=tmp_path / "resumed")
    on = raysim.run(experiment(), dataset=images, path=tmp_path / "resumed", resume=True)
    assert torch.equal(params(on), params(whole))
    assert not torch.equal(params(raysim.run(experiment(), dataset=images, path=tmp_path / "with")), params(whole))


def test_a_run_that_began_with_it_does_not_go_on_without_it(
    images: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = raysim.run(experiment(), dataset=images, path=tmp_path / "whole")
    raysim.run(experiment(rounds=2), dataset=images, path=tmp_path / "resumed")
    with monkeypatch.context() as patch:
        without_library(patch, SOURCE)
        with pytest.raises(RunFolderError, match="convolutions were computed by a compiled library"):
            raysim.run(experiment(), dataset=images, path=tmp_path / "resumed", resume=True)
    on = raysim.run(experiment(), dataset=images, path=tmp_path / "resumed", resume=True)
    assert torch.equal(params(on), params(whole))


def test_a_worker_without_a_compiler_says_so(images: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = resolve(experiment(), dataset=images)
    without_library(monkeypatch, SOURCE)
    with pytest.raises(ResourceError, match=r"needs a C compiler.*there is none"):
        construction.make(plan.choice, plan.model, plan.initial, plan.task, plan.experiment.client, "float32")
