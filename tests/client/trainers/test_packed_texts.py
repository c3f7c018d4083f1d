"""Layers trained on packed texts make the updates and scores that autograd makes of padded ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainer import Updates
from raysim.client.trainers.construction import make
from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.kernel.lstm import CompiledLstm
from raysim.client.trainers.packed_texts import packs
from raysim.client.trainers.recognise import Recognised, recognise
from raysim.client.trainers.trainer_choice import TrainerChoice, TrainerName
from raysim.data.on_device import Examples
from raysim.models import lstm_word
from raysim.models.layers import Positions, Residual, Tied
from raysim.models.lstm import Lstm
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.kernel import needs_kernel

CLASSES = 30
PACKED = KernelsUsed(lstm=True, classes=True)


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    needs_kernel()


def words(lengths: list[int]) -> Tensor:
    """Texts of so many words, behind them padding."""
    made = torch.randint(1, CLASSES, (len(lengths), 8), generator=torch.Generator().manual_seed(0))
    for text, length in zip(made, lengths, strict=True):
        text[length:] = 0
    return made


def updates(
    trainer: TrainerName, kernels: KernelsUsed, module: Callable[[], nn.Module], texts: Tensor, **given: Any
) -> Updates:
    """Of one client with these texts; `by_place` is the task's, what else is given the section's."""
    task = task_for(CLASSES, None, padding=0, uncounted=(1,), by_place=given.pop("by_place", False))
    section = ClientSection.model_validate({"batch_size": 4, "epochs": 2} | given)
    model, weights = create(module, 0, torch.float64)
    data = FederatedDataset.from_clients(train={"it": (texts[:, :-1].numpy(), texts[:, 1:].numpy())})
    members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
    made = make(TrainerChoice.of_size(trainer, 1, kernels=kernels), model, weights, task, section, "float32")
    (one,) = local_training.train(made, weights, members, 0.5, model.params)
    return one.updates


def check(module: Callable[[], nn.Module], texts: Tensor, **given: Any) -> None:
    wanted = updates("one_by_one", KernelsUsed(), module, texts, **given)
    found = updates("fused", PACKED, module, texts, **given)
    assert wanted.delta.any()
    assert (found.delta - wanted.delta).abs().max() < 1e-12
    assert found.loss.tolist() == pytest.approx(wanted.loss.tolist(), rel=1e-12)
    assert found.correct.tolist() == wanted.correct.tolist()


def one_layer() -> nn.Module:
    return nn.Sequential(nn.Embedding(CLASSES, 4), Lstm(4, 5, 1), nn.Linear(5, CLASSES))


def many_layers() -> nn.Module:
    body = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
    return nn.Sequential(
        *(nn.Embedding(CLASSES, 4, padding_idx=2), Lstm(4, 5, 2, biases=1), nn.LayerNorm(5), Residual(body)),
        *(Residual(nn.Sequential(Lstm(5, 5, 1, biases=0))), nn.ReLU(), nn.Linear(5, CLASSES)),
    )


def tied() -> nn.Module:
    return Tied(CLASSES, 4, nn.Sequential(Lstm(4, 4, 1), nn.Tanh()))


def word_model() -> nn.Module:
    return lstm_word.make(lstm_word.LstmWord(embedding=4, hidden=5, layers=2), (7,), CLASSES)


MODULES = {"one layer": one_layer, "many": many_layers, "tied": tied, "words": word_model}
LENGTHS = [8, 3, 0, 5, 1, 8, 2, 0, 6, 4]


@pytest.mark.parametrize("by_place", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_clients_train_as_by_autograd(name: str, by_place: bool) -> None:
    check(MODULES[name], words(LENGTHS), by_place=by_place)


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}},
        {"optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 0.1}},
        {"correction": {"name": "prox", "mu": 0.5}},
        {"batch_size": "full"},
    ],
    ids=str,
)
def test_whatever_the_step_is(given: dict[str, Any]) -> None:
    check(one_layer, words(LENGTHS), **given)


def test_places_between_others_that_do_not_count_are_read() -> None:
    """Their words change the states behind them."""
    texts = words([8, 8, 6, 5])
    texts[0, 3] = texts[1, 2] = texts[1, 3] = texts[2, 1] = 0
    check(one_layer, texts)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_batch_of_which_no_place_counts_moves_nothing_itself(momentum: float) -> None:
    """Its loss and its gradient are 0: not what the batch before has left."""
    texts = words([8, 5, 3, 2, 0, 0, 1, 0, 4, 7])
    check(one_layer, texts, epochs=1, optimizer={"name": "sgd", "lr": 0.1, "momentum": momentum})


def test_padding_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    forward = CompiledLstm.forward_packed

    def watched(self: CompiledLstm, added: Tensor, *others: Any) -> tuple[Tensor, ...]:
        rows.append(len(added))
        return forward(self, added, *others)

    monkeypatch.setattr(CompiledLstm, "forward_packed", watched)
    updates("fused", PACKED, one_layer, words([8, 3, 1, 2]), epochs=1)
    # Of a text of n words the targets are all but the first.
    assert rows == [7 + 2 + 0 + 1]


def recognised(*layers: nn.Module) -> Recognised:
    found = recognise(nn.Sequential(*layers))
    assert isinstance(found, Recognised), found
    return found


TEXTS = task_for(CLASSES, None, padding=0)


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Embedding(CLASSES, 4), nn.Linear(4, CLASSES)),
        (nn.Embedding(CLASSES, 4), Positions(1.0), Lstm(4, 4, 1), nn.Linear(4, CLASSES)),
        (nn.Embedding(CLASSES, 4), Lstm(4, 4, 1), nn.Dropout(0.5), nn.Linear(4, CLASSES)),
        (nn.Embedding(CLASSES, 4), Lstm(4, 4, 1), nn.LayerNorm((7, 4)), nn.Linear(4, CLASSES)),
        (nn.Embedding(CLASSES, 4), Residual(nn.Sequential(Lstm(4, 4, 1), nn.Dropout(0.5))), nn.Linear(4, CLASSES)),
    ],
    ids=["no LSTM", "places", "masks of places", "a norm over places", "inside of another"],
)
def test_layers_that_look_at_more_than_a_place_are_not_packed(layers: tuple[nn.Module, ...]) -> None:
    assert not packs(recognised(*layers), TEXTS)


def test_what_is_packed() -> None:
    layers = recognised(nn.Embedding(CLASSES, 4), Lstm(4, 4, 1), nn.Linear(4, CLASSES))
    assert packs(layers, TEXTS)
    assert not packs(layers, task_for(CLASSES, None))
    assert not packs(layers, task_for(CLASSES, lambda outputs, targets: outputs.sum((1, 2)), padding=0))
