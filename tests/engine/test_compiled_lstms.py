"""Which runs compute LSTMs by the compiled passes, and that a run goes on as it began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client.trainers.kernel.lstm import SOURCE
from raysim.engine.plan.resolve import resolve
from raysim.errors import RunFolderError
from tests.support.kernel import needs_kernel, without_library


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


@pytest.fixture
def texts() -> raysim.FederatedDataset:
    draw = np.random.default_rng(0)

    def client(n: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.standard_normal((n, 6, 3), dtype=np.float32), draw.integers(0, 4, n)

    return raysim.FederatedDataset.from_clients(
        train={str(i): client(5 + i) for i in range(6)}, test={str(i): client(3) for i in range(6)}
    )


class Own(nn.Module):
    """The last state of an LSTM decides."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(3, 8, 2, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.lstm(x)[0][:, -1])
        return outputs


def experiment(**changes: Any) -> raysim.Experiment:
    given: dict[str, Any] = {
        "name": "recurrent",
        "client": {"batch_size": 4},
        "cohort": {"size": 3},
        "rounds": 3,
        "engine": {"workers": 0},
    }
    return raysim.Experiment.model_validate({**given, **changes})


@pytest.mark.parametrize(
    ("engine", "compiled"),
    [
        ({}, True),
        ({"trainer": "recorded"}, True),
        ({"trainer": "one_by_one"}, False),
        ({"dtype": "float64"}, False),
        ({"precision": "bf16"}, True),
        ({"precision": "bf16", "trainer": "one_by_one"}, False),
        ({"threads": 2}, False),
    ],
    ids=str,
)
def test_what_is_computed_by_the_passes(texts: raysim.FederatedDataset, engine: dict[str, Any], compiled: bool) -> None:
    plan = resolve(experiment(engine={"workers": 0, **engine}), dataset=texts, model=Own)
    assert plan.choice.kernels.lstm == compiled
    assert plan.choice.record.get("lstm", False) == compiled


def params(run: raysim.Run) -> torch.Tensor:
    return torch.cat([one.flatten() for one in run.params.values()])


def test_a_run_goes_on_as_it_began(
    texts: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: Any = {"dataset": texts, "model": Own}
    with monkeypatch.context() as patch:
        without_library(patch, SOURCE)
        before = raysim.run(experiment(), path=tmp_path / "before", **parts)
        raysim.run(experiment(rounds=2), path=tmp_path / "resumed", **parts)
    on = raysim.run(experiment(), path=tmp_path / "resumed", resume=True, **parts)
    assert torch.equal(params(on), params(before))
    whole = raysim.run(experiment(), path=tmp_path / "whole", **parts)
    torch.testing.assert_close(params(whole), params(before), rtol=1e-4, atol=1e-5)
    assert not torch.equal(params(whole), params(before))
    raysim.run(experiment(rounds=2), path=tmp_path / "other", **parts)
    with monkeypatch.context() as patch:
        without_library(patch, SOURCE)
        with pytest.raises(RunFolderError, match="LSTMs were computed by a compiled library"):
            raysim.run(experiment(), path=tmp_path / "other", resume=True, **parts)
    on = raysim.run(experiment(), path=tmp_path / "other", resume=True, **parts)
    assert torch.equal(params(on), params(whole))


@pytest.mark.parametrize(("places", "trainer"), [(59, "stacked"), (60, "interpreted")])
def test_whether_a_tiny_lstm_is_stacked_depends_on_the_places_of_a_batch(places: int, trainer: str) -> None:
    rows = np.ones((4, places), np.int64)
    data = raysim.FederatedDataset.from_clients(train={"a": (rows, rows), "b": (rows, rows)})
    tiny = {"name": "lstm_char", "hidden": 4, "layers": 1}
    assert resolve(experiment(model=tiny, cohort={"size": 2}), dataset=data).choice.trainer == trainer
