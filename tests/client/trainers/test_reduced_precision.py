"""Products in bfloat16, weights in float32: near the float32 update, and not equal to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers.construction import make
from raysim.client.trainers.reduced_precision import products_in
from raysim.client.trainers.trainer_choice import BY_HAND, Precision, TrainerChoice
from raysim.data.on_device import Examples
from raysim.models import cnn, lstm_word, transformer_word
from raysim.models.model import create
from raysim.models.task import task_for


class States(nn.Module):
    """An LSTM without a layer behind it, of one-dimensional texts."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 128, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        states: Tensor = self.lstm(x[..., None].expand(-1, -1, 4))[0]
        return states[:, -1, :10]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small": (partial(nn.Linear, 6, 10), (6,)),
    "large linear": (partial(nn.Linear, 700, 100), (700,)),
    "cnn": (partial(cnn.make, cnn.Cnn(), (1, 14, 14), 10), (1, 14, 14)),
    "lstm": (partial(lstm_word.make, lstm_word.LstmWord(embedding=9, hidden=128), (5,), 10), (5,)),
    "states": (States, (6,)),
    "transformer": (
        partial(
            transformer_word.make,
            transformer_word.TransformerWord(embedding=16, width=256, heads=4, hidden=260, layers=1),
            (20,),
            10,
        ),
        (20,),
    ),
}
WORDS = ("lstm", "transformer")


def delta(trainer: str, name: str, precision: Precision) -> torch.Tensor:
    factory, shape = MODELS[name]
    draw = np.random.default_rng(0)
    if name in WORDS:
        x, y = (draw.integers(0, 10, (20, *shape)) for _ in range(2))
    else:
        x, y = draw.standard_normal((20, *shape)).astype(np.float32), draw.integers(0, 10, 20)
    data, section = FederatedDataset.from_clients(train={"it": (x, y)}), ClientSection(batch_size=8)
    model, weights = create(factory, 0, torch.float32)
    made = make(TrainerChoice.of_size(trainer, 1), model, weights, task_for(10, None), section, precision)  # type: ignore[arg-type]
    members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
    (trained,) = local_training.train(made, weights, members, 0.05, model.params)
    return trained.updates.delta[0].clone()


@pytest.mark.parametrize("name", ["large linear", "cnn", *WORDS])
@pytest.mark.parametrize("trainer", ["fused", "stacked", "one_by_one", "recorded"])
def test_bf16_is_near_float32(trainer: str, name: str) -> None:
    if name == "lstm" and trainer in BY_HAND:
        pytest.skip("its LSTM stays in float32, and its other weights are small")
    exact, near = delta(trainer, name, "float32"), delta(trainer, name, "bf16")
    assert near.dtype == torch.float32
    assert not torch.equal(exact, near)
    # Eight bits of mantissa: a per cent or so an update, and more where relu turns.
    assert float((near - exact).norm()) < 0.2 * float(exact.norm())


@pytest.mark.parametrize(
    ("trainer", "name"),
    [("one_by_one", "states"), ("recorded", "states"), ("fused", "lstm"), ("stacked", "lstm")],
)
def test_lstms_stay_in_float32(trainer: str, name: str) -> None:
    exact, near = (delta(trainer, name, precision) for precision in ("float32", "bf16"))
    # A stack's rows are filled up for either type, and other shapes may have other last digits; bfloat16 has two.
    assert float((near - exact).norm()) <= 1e-5 * float(exact.norm())


def test_an_lstm_behind_a_product_in_bf16_takes_its_numbers_in_float32() -> None:
    lstm, linear = nn.LSTM(128, 8, batch_first=True), nn.Linear(5, 128)
    x = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    with products_in(torch.bfloat16, torch.device("cpu")):
        features = linear(x)
        states, (last, _) = lstm(features, (torch.ones(1, 2, 8).bfloat16(), torch.ones(1, 2, 8)))
    assert features.dtype == torch.bfloat16
    assert states.dtype == last.dtype == torch.float32
    ones = torch.ones(1, 2, 8)
    assert torch.equal(states, lstm(features.float(), (ones, ones))[0])


class StatesOf(NamedTuple):
    """What may be passed to an LSTM."""

    h: Tensor
    c: Tensor


@pytest.mark.parametrize("short", ["inputs", "weights"])
def test_an_lstm_takes_what_has_fewer_bits_in_float32(short: str) -> None:
    lstm = nn.LSTM(5, 8, batch_first=True)
    x, states = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)), torch.ones(1, 2, 8)
    wide = nn.LSTM(5, 8, batch_first=True)
    if short == "weights":
        lstm.requires_grad_(False).half()
    else:
        x = x.half()
    wide.load_state_dict({name: value.float() for name, value in lstm.state_dict().items()})
    with products_in(torch.bfloat16, torch.device("cpu")):
        made, _ = lstm(x, StatesOf(states, states))
    assert torch.equal(made, wide(x.float(), (states, states))[0])


def test_packed_texts_are_taken_too() -> None:
    lstm, x = nn.LSTM(5, 8, batch_first=True), torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    packed = pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
    with products_in(torch.bfloat16, torch.device("cpu")):
        made = lstm(packed)[0].data
    assert torch.equal(made, lstm(packed)[0].data)


def test_bf16_under_vmap_is_that_of_one_client() -> None:
    together, alone = (delta(trainer, "large linear", "bf16") for trainer in ("vmap", "one_by_one"))
    torch.testing.assert_close(together, alone, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("trainer", ["fused", "stacked", "one_by_one", "recorded", "vmap"])
def test_small_products_stay_exact_where_layers_are_written_out(trainer: str) -> None:
    exact, near = (delta(trainer, "small", precision) for precision in ("float32", "bf16"))
    # A stack's rows are filled up for either type, and other shapes may have other last digits.
    is_exact = torch.allclose(near, exact, rtol=1e-5, atol=1e-6 * float(exact.abs().max()))
    assert is_exact == (trainer in ("fused", "stacked"))
