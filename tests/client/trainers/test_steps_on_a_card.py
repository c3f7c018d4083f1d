"""Local training on a card, on fake tensors: all tensors lie there, and nothing between local steps waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.chunk_clients import ChunkClients
from raysim.client.corrections import choice as corrections
from raysim.client.section import ClientSection
from raysim.client.trainers.construction import Further, make
from raysim.client.trainers.layers.group_norm import GroupNorm
from raysim.client.trainers.trainer_choice import Precision, TrainerChoice
from raysim.data.on_device import Examples
from raysim.models import lstm_char, transformer_word
from raysim.models.lstm import Lstm
from raysim.models.model import Weights, create
from raysim.models.task import task_for
from tests.support.fake_card import CARD, fake_card
from tests.support.trainer_models import MODELS

TRAINERS = ("one_by_one", "recorded", "fused", "stacked", "vmap")
SIZES = (3, 2)


class WithBuffers(nn.Module):
    """A class of one's own with a skip, running means and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inside, self.head = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(x + torch.nn.functional.gelu(self.inside(self.norm(x))))
        return made


def images(x_shape: tuple[int, ...], y_shape: tuple[int, ...] = ()) -> FederatedDataset:
    draw = np.random.default_rng(0)
    return FederatedDataset.from_clients(
        train={str(n): (draw.standard_normal((n, *x_shape)), draw.integers(0, 4, (n, *y_shape))) for n in SIZES}
    )


def texts() -> FederatedDataset:
    draw = np.random.default_rng(0)
    return FederatedDataset.from_clients(
        train={str(n): (draw.integers(0, 4, (n, 3)), draw.integers(0, 4, (n, 3))) for n in SIZES}
    )


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], FederatedDataset]]] = {
    "cnn with dropout": (MODELS["cnn"][0], partial(images, (2, 8, 9))),
    "norms": (MODELS["norms"][0], partial(images, (2, 6, 7))),
    "lstm": (partial(lstm_char.make, lstm_char.LstmChar(embedding=3, hidden=5), (3,), 4), texts),
    "transformer": (
        partial(
            transformer_word.make,
            transformer_word.TransformerWord(embedding=6, width=8, heads=2, hidden=5, layers=1, dropout=0.0),
            (3,),
            4,
        ),
        texts,
    ),
}


MLP = MODELS["mlp"][0], partial(images, (6,))


def waits(
    trainer: str,
    factory: Callable[[], nn.Module],
    data: FederatedDataset,
    work: Mapping[str, Any],
    precision: Precision = "float32",
    loss: Any = None,
    cuda_graphs: bool = False,
) -> tuple[Counter[str], Counter[str]]:
    """What makes the host wait when the clients train for one epoch, and for two; updates must lie on the card."""
    model, start = create(factory, 0, torch.float32)
    task = task_for(data.num_classes, loss, data.y.padding)
    sections = [ClientSection.model_validate({"batch_size": 2, **work, "epochs": epochs}) for epochs in (1, 2)]
    found = []
    with fake_card() as card:
        weights = Weights(*(one.to(CARD) for one in (start.params, start.buffers, start.counters)))
        made = make(
            TrainerChoice.of_size(trainer, 2, short_batches="recorded"),  # type: ignore[arg-type]
            model,
            weights,
            task,
            sections[0],
            precision,
            Further(cuda_graphs=cuda_graphs),
        )
        # Steps are recorded beforehand.
        warm_up = [sections[1]] * (1 if trainer == "recorded" else 3 if cuda_graphs else 0)
        for section in (*warm_up, *sections):
            members = local_training.members(Examples(data), range(len(SIZES)), section, 0, 3, weights.params)
            clients, start_of = sent_with(members, section, weights.params)
            card.waits.clear()
            for updates in made.train(weights, clients, 0.1, start_of):
                assert updates.delta.device.type == updates.buffers.device.type == "cuda"
                assert updates.loss.device.type == "cpu"
            found.append(card.waits.copy())
    return found[-2], found[-1]


def sent_with(
    members: ChunkClients, section: ClientSection, params: torch.Tensor
) -> tuple[ChunkClients, Mapping[str, torch.Tensor] | None]:
    """The clients with what their correction sends them and keeps for them, and what their optimizer starts from."""
    half = corrections.make(section.correction)
    offset = None if half.client.offset is None else torch.zeros_like(params)
    received = half.exchange.down(half.server.init(params), params)
    start = None if half.client.start is None else half.client.start(received)
    return members.with_each(lambda member: replace(member, offset=offset, received=received)), start


def assert_no_step_waits(trainer: str, *given: Any, **options: Any) -> None:
    few, many = waits(trainer, *given, **options)
    assert few == many
    # The losses of all clients come to the host at the end; indices and keys of masks go to the card at the beginning.
    # No number is read.
    assert few["down"] == 1
    assert few["read"] == 0
    # Which targets are visited, and whose they are; of each client, which examples, and keys.
    assert few["up"] <= (2 + 2 * len(SIZES) if trainer in ("one_by_one", "recorded", "fused") else 6)


@pytest.mark.parametrize(
    ("trainer", "case"),
    # vmap refuses dropout and an LSTM; by autograd, most of what is called is torch's.
    [
        *product(["fused", "stacked"], CASES),
        *product(["one_by_one", "recorded"], ["cnn with dropout"]),
        *product(["recorded", "vmap"], ["transformer"]),
    ],
)
def test_local_steps_do_not_wait(trainer: str, case: str) -> None:
    factory, data = CASES[case]
    assert_no_step_waits(trainer, factory, data(), {})


ALL_AT_ONCE: dict[str, Any] = {"optimizer": {"momentum": 0.5, "weight_decay": 0.1}, "max_grad_norm": 0.3}
WORK: list[dict[str, Any]] = [
    {"optimizer": {"name": "adam"}, "fill_last_batch": True},
    {"optimizer": {"name": "adagrad"}},
    {"correction": {"name": "scaffold"}},
    {"correction": {"name": "prox", "mu": 0.1}, "optimizer": {"momentum": 0.5}},
]


@pytest.mark.parametrize(
    ("trainer", "work"),
    [
        *product(TRAINERS, [ALL_AT_ONCE, {"correction": {"name": "mime"}}]),
        *product(["stacked"], WORK),
    ],
    ids=str,
)
def test_nothing_that_changes_a_gradient_waits(trainer: str, work: dict[str, Any]) -> None:
    factory, data = MLP
    assert_no_step_waits(trainer, factory, data(), work)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_products_in_bf16_do_not_wait(trainer: str) -> None:
    factory, data = MLP
    assert_no_step_waits(trainer, factory, data(), {}, precision="bf16")


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded"])
def test_running_statistics_stay_on_the_card(trainer: str) -> None:
    assert_no_step_waits(trainer, WithBuffers, images((6,)), {"batch_size": 3, "fill_last_batch": True})


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "fused"])
def test_a_loss_of_ones_own_does_not_wait(trainer: str) -> None:
    factory, data = MLP
    loss = partial(nn.functional.cross_entropy, reduction="none", label_smoothing=0.1)
    assert_no_step_waits(trainer, factory, data(), {}, loss=loss)


def test_a_recorded_pass_is_played_without_a_wait() -> None:
    factory, data = CASES["cnn with dropout"]
    assert_no_step_waits("stacked", factory, data(), {}, cuda_graphs=True)


def test_a_gradient_over_all_examples_lies_on_the_card() -> None:
    factory, data = MLP
    model, start = create(factory, 0, torch.float32)
    with fake_card():
        weights = Weights(*(one.to(CARD) for one in (start.params, start.buffers, start.counters)))
        made = make(
            TrainerChoice.of_size("stacked", 2),
            model,
            weights,
            task_for(4, None),
            ClientSection(),
            "float32",
            Further(sums_gradients=True),
        )
        members = local_training.members(Examples(data()), (0, 1), ClientSection(), 0, 0, weights.params)
        gradients = [one.device.type for _, one in local_training.full_gradients(made, weights, members)]
    assert gradients == ["cuda"]


def test_a_module_that_reads_a_number_in_its_forward_is_caught() -> None:
    """The tests above can fail."""

    class Reads(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x / float(x.abs().max()))

    few, many = waits("one_by_one", partial(Reads, 6, 4), images((6,)), {})
    assert many["read"] == 2 * few["read"] > 0


def test_a_tensor_of_the_host_among_the_cards_is_caught() -> None:
    class Mixes(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x + torch.ones(6))

    with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
        waits("one_by_one", partial(Mixes, 6, 4), images((6,)), {})


def test_a_group_norm_on_a_card_takes_images_whose_channels_are_last() -> None:
    """The stand-in refuses what torch's kernel for cards refuses."""
    with fake_card():
        x = torch.zeros(2, 4, 3, 3, device=CARD).contiguous(memory_format=torch.channels_last)
        assert not x.is_contiguous()
        y = GroupNorm(nn.GroupNorm(2, 4), None, None, x).forward(x)
    assert y.shape == x.shape


@pytest.mark.parametrize(("device", "trains", "told"), [(CARD, True, True), (CARD, False, False), ("cpu", True, False)])
def test_cudnn_is_told_when_an_lstm_is_trained(
    device: torch.device, trains: bool, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that it refuses the backward. On a CPU the call stays as it was, and so do the bits."""
    calls: list[tuple[Any, ...]] = []

    def noted(*args: Any) -> tuple[torch.Tensor]:
        calls.append(args)
        return (args[0],)

    monkeypatch.setattr(torch, "lstm", noted)
    with fake_card(), torch.set_grad_enabled(trains):
        Lstm(3, 3, 1).to(device)(torch.zeros(2, 4, 3, device=device))
    assert calls[0][6] is told
