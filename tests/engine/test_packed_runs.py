"""Which runs train LSTMs on packed texts and compute cross entropy in C, and that a run goes on as it began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.client.trainers import trainer_table
from raysim.client.trainers.kernel import lstm, operators
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.engine.plan import trainer_trials
from raysim.engine.plan.resolve import resolve
from raysim.errors import RunFolderError
from tests.support.kernel import needs_kernel, without_library

WORDS = 300


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


@pytest.fixture
def texts() -> raysim.FederatedDataset:
    """Texts of 0 to 6 words, of which one has the largest number."""
    draw = np.random.default_rng(0)

    def client(n: int) -> tuple[np.ndarray, np.ndarray]:
        words = draw.integers(1, WORDS, (n, 7))
        words[0] = WORDS - 1
        for text, length in zip(words[1:], draw.integers(0, 8, n - 1), strict=True):
            text[length:] = 0
        return words[:, :-1], words[:, 1:]

    data = raysim.FederatedDataset.from_clients(train={str(i): client(5 + i) for i in range(6)})
    return replace(data, y=replace(data.y, padding=0), fingerprint="texts")


def experiment(**changes: Any) -> raysim.Experiment:
    given: dict[str, Any] = {
        "name": "words",
        "model": {"name": "lstm_word", "embedding": 8, "hidden": 12},
        "client": {"batch_size": 4},
        "cohort": {"size": 3},
        "rounds": 3,
        "engine": {"workers": 0, "trainer": "fused"},
    }
    return raysim.Experiment.model_validate({**given, **changes})


@pytest.mark.parametrize(
    ("engine", "recorded"),
    [
        ({"trainer": "fused"}, ["classes", "lstm"]),
        ({"trainer": "recorded"}, ["classes", "counted", "lstm"]),
        ({"trainer": "one_by_one"}, []),
        ({"trainer": "fused", "dtype": "float64"}, []),
        ({"trainer": "fused", "threads": 2}, []),
    ],
    ids=str,
)
def test_what_is_computed_in_c(texts: raysim.FederatedDataset, engine: dict[str, Any], recorded: list[str]) -> None:
    record = resolve(experiment(engine={"workers": 0, **engine}), dataset=texts).choice.record
    assert sorted(name for name, is_used in record.items() if is_used is True) == recorded


def test_large_word_models_are_trained_so(texts: raysim.FederatedDataset) -> None:
    large = {"name": "lstm_word", "embedding": 96, "hidden": 670}
    choice = resolve(experiment(model=large, engine={"workers": 0}), dataset=texts).choice
    assert (choice.trainer, choice.kernels.lstm, choice.kernels.classes) == ("fused", True, True)


def params(run: raysim.Run) -> torch.Tensor:
    return torch.cat([one.flatten() for one in run.params.values()])


@pytest.mark.parametrize(
    ("source", "said"), [(lstm.SOURCE, "LSTMs"), (operators.SOURCE, "LSTMs")], ids=["passes", "cross entropy"]
)
def test_a_run_goes_on_as_it_began(
    texts: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, said: str
) -> None:
    with monkeypatch.context() as patch:
        without_library(patch, source)
        before = raysim.run(experiment(), path=tmp_path / "before", dataset=texts)
        raysim.run(experiment(rounds=2), path=tmp_path / "resumed", dataset=texts)
    on = raysim.run(experiment(), path=tmp_path / "resumed", resume=True, dataset=texts)
    assert torch.equal(params(on), params(before))
    whole = raysim.run(experiment(), path=tmp_path / "whole", dataset=texts)
    torch.testing.assert_close(params(whole), params(before), rtol=1e-4, atol=1e-5)
    raysim.run(experiment(rounds=2), path=tmp_path / "other", dataset=texts)
    with monkeypatch.context() as patch:
        without_library(patch, source)
        with pytest.raises(RunFolderError, match=f"its {said} were computed by a compiled library"):
            raysim.run(experiment(), path=tmp_path / "other", resume=True, dataset=texts)
    on = raysim.run(experiment(), path=tmp_path / "other", resume=True, dataset=texts)
    assert torch.equal(params(on), params(whole))


def test_a_run_whose_cross_entropy_was_torchs_goes_on_so(
    texts: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where steps are recorded it is the gradient alone that a compiler decides on."""
    by_operators = {"engine": {"workers": 0, "trainer": "recorded"}}
    with monkeypatch.context() as patch:
        without_library(patch, operators.SOURCE)
        before = raysim.run(experiment(**by_operators), path=tmp_path / "before", dataset=texts)
        raysim.run(experiment(rounds=2, **by_operators), path=tmp_path / "resumed", dataset=texts)
    on = raysim.run(experiment(**by_operators), path=tmp_path / "resumed", resume=True, dataset=texts)
    assert torch.equal(params(on), params(before))
    raysim.run(experiment(rounds=2, **by_operators), path=tmp_path / "other", dataset=texts)
    with monkeypatch.context() as patch:
        without_library(patch, operators.SOURCE)
        with pytest.raises(RunFolderError, match="its gradients of cross entropy were computed by a compiled library"):
            raysim.run(experiment(**by_operators), path=tmp_path / "other", resume=True, dataset=texts)


class OwnWords(nn.Module):
    """The next word by the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of each place."""
        made: torch.Tensor = self.scores(self.words(x).tanh())
        return made


def test_a_run_that_made_outputs_of_all_places_goes_on_so(
    texts: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(rounds: int, name: str, resume: bool = False) -> raysim.Run:
        exp = experiment(model=None, rounds=rounds, engine={"workers": 0, "trainer": "recorded"})
        return raysim.run(exp, path=tmp_path / name, resume=resume, dataset=texts, model=OwnWords)

    of_all = trainer_table.choose

    def chosen(*given: Any) -> TrainerChoice:
        choice = of_all(*given)
        return replace(choice, kernels=choice.kernels._replace(counted=False))

    with monkeypatch.context() as patch:
        patch.setattr(trainer_trials, "choose", chosen)
        before = run(3, "before")
        run(2, "resumed")
    assert torch.equal(params(run(3, "resumed", resume=True)), params(before))
    whole = run(3, "whole")
    torch.testing.assert_close(params(whole), params(before), rtol=1e-4, atol=1e-5)
    assert not torch.equal(params(whole), params(before))
