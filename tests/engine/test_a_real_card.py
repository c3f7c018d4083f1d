"""Rounds on a real card, beside the same rounds on the CPU; without a card every test here is skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim import card
from raysim.errors import DeviceMemoryError
from raysim.models import lstm_char, transformer_word
from tests.support.trainer_models import MODELS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no card here")

Make = Callable[..., raysim.Experiment]
TRAINERS = ("one_by_one", "recorded", "fused", "stacked", "vmap")
SIZES = (13, 20, 5, 1, 8, 16)
LSTM = partial(lstm_char.make, lstm_char.LstmChar(embedding=3, hidden=5), (7,), 4)
TRANSFORMER = partial(
    transformer_word.make,
    transformer_word.TransformerWord(embedding=6, width=8, heads=2, hidden=5, layers=1, dropout=0.0),
    (7,),
    4,
)
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    **{name: (make, shape, False) for name, (make, shape) in MODELS.items()},
    "lstm": (LSTM, (7,), True),
    "transformer": (TRANSFORMER, (7,), True),
}
"""A module, the shape of an example, and whether its values are words, with a label for each."""
CORRECTIONS: dict[str, dict[str, float]] = {
    "scaffold": {},
    "mimelite": {},
    "prox": {"mu": 0.1},
    "feddyn": {"mu": 0.1},
    "adabest": {"beta": 0.9},
}
PAIRS = [
    (trainer, case)
    # vmap does not draw per client, and torch has no batching rule for an LSTM.
    for trainer, case in product(TRAINERS, CASES)
    if trainer != "vmap" or case not in ("cnn", "lstm")
]
TOLERANCE = 1e-3
"""How far the CPU may be, relative to the largest change of a number: products add up in another order."""


def clients(shape: tuple[int, ...], words: bool) -> raysim.FederatedDataset:
    draw = np.random.default_rng(0)

    def held(count: int) -> tuple[Any, Any]:
        if words:
            return draw.integers(0, 4, (count, *shape)), draw.integers(0, 4, (count, *shape))
        return draw.standard_normal((count, *shape), dtype=np.float32), draw.integers(0, 4, count)

    return raysim.FederatedDataset.from_clients(
        train={str(i): held(count) for i, count in enumerate(SIZES)}, test={str(i): held(9) for i in range(3)}
    )


def after(
    experiment: Make, case: str, on_card: bool, lr: float = 0.1, **sections: Any
) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """The parameters after two rounds, and the last round's metrics."""
    make, shape, words = CASES[case]
    engine = {"workers": 0, "gpus_per_worker": "auto" if on_card else 0, **sections.pop("engine", {})}
    client = {"optimizer": {"name": "sgd", "lr": lr}, "batch_size": 4, **sections.pop("client", {})}
    settings = {"rounds": 2, "client": client, "cohort": {"size": 5}, "evaluation": {"every": 1}, **sections}
    made = experiment(**settings, model=None, engine=engine)
    *_, last = raysim.rounds(made, dataset=clients(shape, words), model=make)
    return torch.cat([value.double().flatten() for value in last.params.values()]), last.metrics


def distance(experiment: Make, case: str, **sections: Any) -> float:
    """How far a card's parameters are from the CPU's, relative to the largest change that training made."""
    there, _ = after(experiment, case, True, **sections)
    here, _ = after(experiment, case, False, **sections)
    before, _ = after(experiment, case, False, lr=0.0)
    return float((there - here).abs().max() / (here - before).abs().max())


@pytest.mark.parametrize(("trainer", "case"), PAIRS)
def test_a_card_trains_as_the_cpu_does(trainer: str, case: str, experiment: Make) -> None:
    assert distance(experiment, case, engine={"trainer": trainer}) < TOLERANCE


@pytest.mark.parametrize(("trainer", "case"), [pair for pair in PAIRS if pair[1] in ("mlp", "cnn", "norms", "lstm")])
def test_a_card_has_the_same_bits_again(trainer: str, case: str, experiment: Make) -> None:
    first, again = (after(experiment, case, True, engine={"trainer": trainer})[0] for _ in range(2))
    assert torch.equal(first, again)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("size", [1, 2])
def test_where_examples_are_kept_leaves_the_bits_on_a_card(size: int, trainer: str, experiment: Make) -> None:
    chosen = {"trainer": trainer, "chunk_size": size}
    uploaded = after(experiment, "mlp", True, engine={**chosen, "examples": "device"})[0]
    assert torch.equal(uploaded, after(experiment, "mlp", True, engine={**chosen, "examples": "host"})[0])


@pytest.mark.parametrize(
    ("trainer", "case"),
    [
        *product(["stacked"], ["mlp", "cnn", "norms", "lstm"]),
        *product(["recorded"], ["mlp", "cnn", "norms", "transformer"]),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_cuda_graphs_leave_the_bits(precision: str, trainer: str, case: str, experiment: Make) -> None:
    engine = {"trainer": trainer, "precision": precision}
    # Enough local steps for the usual shapes to be recorded, and another rate in the second round.
    client = {"epochs": 3, "lr_decay": 0.5}
    plain, played = (
        after(experiment, case, True, engine={**engine, "cuda_graphs": graphs}, client=client)[0]
        for graphs in (False, True)
    )
    assert torch.equal(plain, played)


def test_cuda_graphs_are_played(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    played = 0
    record = card.GraphMemory.record

    def counted(self: card.GraphMemory, work: Callable[[], Any]) -> Any:
        play, *rest = record(self, work)

        def counts() -> None:
            nonlocal played
            played += 1
            play()

        return counts, *rest

    monkeypatch.setattr(card.GraphMemory, "record", counted)
    for trainer in ("stacked", "recorded"):
        before = played
        after(experiment, "mlp", True, engine={"trainer": trainer}, client={"epochs": 3})
        assert played > before


class Draws(nn.Module):
    """Its masks come from torch's generator, which a graph would not start at a client's key."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(nn.functional.dropout(x, 0.5, self.training))
        return out


def test_a_module_that_draws_is_not_recorded_as_a_graph(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CASES, "draws", (Draws, (6,), False))
    engine = {"trainer": "recorded"}
    plain, tried = (
        after(experiment, "draws", True, engine={**engine, "cuda_graphs": graphs}, client={"epochs": 3})[0]
        for graphs in (False, True)
    )
    assert torch.equal(plain, tried)


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_lower_precision_on_a_card_is_near_float32(precision: str, trainer: str, experiment: Make) -> None:
    exact, _ = after(experiment, "mlp", True, engine={"trainer": trainer})
    before, _ = after(experiment, "mlp", False, lr=0.0)
    rough, _ = after(experiment, "mlp", True, engine={"trainer": trainer, "precision": precision})
    far = float((rough - exact).abs().max() / (exact - before).abs().max())
    assert far < {"tf32": 0.01, "bf16": 0.1}[precision]
    # Layers of their own take bf16 for large weights only.
    assert far > 0 or trainer in ("fused", "stacked")


@pytest.mark.parametrize("correction", CORRECTIONS)
@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "stacked"])
def test_corrections_on_a_card_are_those_of_the_cpu(trainer: str, correction: str, experiment: Make) -> None:
    client = {"correction": {"name": correction, **CORRECTIONS[correction]}}
    assert distance(experiment, "mlp", client=client, engine={"trainer": trainer}) < TOLERANCE


def test_scores_on_a_card_are_those_of_the_cpu(experiment: Make) -> None:
    there, here = (after(experiment, "cnn", on_card, engine={"trainer": "recorded"})[1] for on_card in (True, False))
    assert there.keys() == here.keys()
    assert there["eval/test/accuracy"] == pytest.approx(here["eval/test/accuracy"], abs=0.04)
    assert there["eval/test/loss"] == pytest.approx(here["eval/test/loss"], rel=1e-3)


def test_a_trainer_that_is_measured_on_a_card_is_kept(experiment: Make) -> None:
    first, _ = after(experiment, "mlp", True)
    assert list(Path(os.environ["RAYSIM_CACHE"], "trainers").glob("*.json"))
    again, _ = after(experiment, "mlp", True)
    assert torch.equal(first, again)


def test_a_model_that_does_not_fit_on_a_card_says_so(experiment: Make) -> None:
    class Huge(nn.Module):
        """Its output takes a petabyte."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wide = x.new_zeros(1 << 48) if x.is_cuda else x.new_zeros(1)
            out: torch.Tensor = self.head(x) + wide.sum()
            return out

    made = experiment(model=None, cohort={"size": 2}, engine={"workers": 0, "gpus_per_worker": "auto"})
    with pytest.raises(DeviceMemoryError):
        list(raysim.rounds(made, dataset=clients((6,), False), model=Huge))
