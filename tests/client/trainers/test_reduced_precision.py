"""Products in bfloat16, weights in float32: near the float32 update, and not equal to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers.construction import make
from raysim.client.trainers.trainer_choice import Precision, TrainerChoice
from raysim.data.on_device import Examples
from raysim.models import cnn, lstm_word, transformer_word
from raysim.models.model import create
from raysim.models.task import task_for

MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small": (partial(nn.Linear, 6, 10), (6,)),
    "large linear": (partial(nn.Linear, 700, 100), (700,)),
    "cnn": (partial(cnn.make, cnn.Cnn(), (1, 14, 14), 10), (1, 14, 14)),
    "lstm": (partial(lstm_word.make, lstm_word.LstmWord(embedding=9, hidden=128), (5,), 10), (5,)),
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
    exact, near = delta(trainer, name, "float32"), delta(trainer, name, "bf16")
    assert near.dtype == torch.float32
    assert not torch.equal(exact, near)
    # Eight bits of mantissa: a per cent or so an update, and more where relu turns.
    assert float((near - exact).norm()) < 0.2 * float(exact.norm())


def test_bf16_under_vmap_is_that_of_one_client() -> None:
    together, alone = (delta(trainer, "large linear", "bf16") for trainer in ("vmap", "one_by_one"))
    torch.testing.assert_close(together, alone, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize("trainer", ["fused", "stacked", "one_by_one", "recorded", "vmap"])
def test_small_products_stay_exact_where_layers_are_written_out(trainer: str) -> None:
    exact, near = (delta(trainer, "small", precision) for precision in ("float32", "bf16"))
    # A stack's rows are filled up for either type, and other shapes may have other last digits.
    is_exact = torch.allclose(near, exact, rtol=1e-5, atol=1e-6 * float(exact.abs().max()))
    assert is_exact == (trainer in ("fused", "stacked"))
