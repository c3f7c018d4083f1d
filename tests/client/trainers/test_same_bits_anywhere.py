"""What a client's update is made of: never where in a chunk it stands, nor what was trained before it."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers.construction import make
from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.data.on_device import Examples
from raysim.models import cnn, linear, lstm_word, mlp, transformer_word
from raysim.models.model import create
from raysim.models.task import task_for

MODELS: dict[str, Any] = {
    "linear": (partial(linear.make, linear.Linear(), (60,), 10), (60,)),
    "mlp": (partial(mlp.make, mlp.Mlp(hidden=(37, 20)), (61,), 10), (61,)),
    "cnn": (partial(cnn.make, cnn.Cnn(), (1, 12, 12), 10), (1, 12, 12)),
    "lstm_word": (partial(lstm_word.make, lstm_word.LstmWord(embedding=7, hidden=13), (6,), 10), (6,)),
    "transformer_word": (
        partial(
            transformer_word.make,
            transformer_word.TransformerWord(embedding=7, width=12, heads=3, hidden=21, layers=2),
            (6,),
            10,
        ),
        (6,),
    ),
}


def examples(draw: np.random.Generator, name: str, n: int, shape: tuple[int, ...]) -> Any:
    """n examples of a client: images or numbers with a label, texts with a target at every place."""
    if name.endswith("word"):
        return draw.integers(0, 10, (n, *shape)), draw.integers(0, 10, (n, *shape))
    return draw.standard_normal((n, *shape)).astype(np.float32), draw.integers(0, 10, n)


def deltas(trainer: str, name: str, others: tuple[int, ...], at: int, work: dict[str, Any]) -> torch.Tensor:
    """The update of one client at place `at` among `others`, given by their sizes; all sizes but its own differ."""
    factory, shape = MODELS[name.partition(" ")[0]]
    draw = np.random.default_rng(0)
    own = {"it": examples(draw, name, 23, shape)}
    data = FederatedDataset.from_clients(
        train=own | {f"{i}": examples(draw, name, n, shape) for i, n in enumerate(others)}
    )
    section = ClientSection.model_validate(work)
    model, weights = create(factory, 0, torch.float32)
    filters = name == "cnn by minimal filtering"
    choice = TrainerChoice.of_size(trainer, 5, short_batches="resized", kernels=KernelsUsed(filters))  # type: ignore[arg-type]
    made = make(choice, model, weights, task_for(10, None), section, "float32")
    places = list(range(1, len(others) + 1))
    places.insert(at, 0)
    members = local_training.members(Examples(data), places, section, 0, 0, weights.params)
    trained = local_training.train(made, weights, members, 0.1, model.params)
    return torch.cat([t.updates.delta.clone() for t in trained])[at]


@pytest.mark.parametrize(
    "work", [{"batch_size": 5}, {"batch_size": 5, "optimizer": {"momentum": 0.9}}], ids=["sgd", "momentum"]
)
@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        *product(["one_by_one", "recorded", "fused"], MODELS),
        *product(["recorded", "fused"], ["cnn by minimal filtering"]),
        *product(["compiled"], ["linear", "mlp"]),
    ],
)
def test_one_after_another_neighbours_change_no_bit(trainer: str, name: str, work: dict[str, Any]) -> None:
    alone = deltas(trainer, name, (), 0, work)
    for others, at in [((7,), 0), ((7,), 1), ((31, 2, 9), 2), ((1, 40), 2)]:
        assert torch.equal(deltas(trainer, name, others, at, work), alone)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_identical_clients_get_identical_bits_at_every_place_of_a_stack(name: str, dtype: torch.dtype) -> None:
    """Batches of every length and widths of every kind: no product may look at where its memory starts."""
    factory, shape = MODELS[name]
    draw = np.random.default_rng(0)
    x, y = examples(draw, name, 23, shape)
    data = FederatedDataset.from_clients(train={"it": (x, y)})
    model, weights = create(factory, 0, dtype)
    for batch_size in [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 22]:
        section = ClientSection(batch_size=batch_size)
        copies = local_training.members(Examples(data), (0,) * 9, section, 0, 0, weights.params)
        made = make(TrainerChoice.of_size("stacked", 9), model, weights, task_for(10, None), section, "float32")
        (trained,) = local_training.train(made, weights, copies, 0.1, model.params)
        for row in trained.updates.delta:
            assert torch.equal(row, trained.updates.delta[0]), batch_size


@pytest.mark.parametrize("name", MODELS)
def test_a_stack_repeats_its_bits(name: str) -> None:
    results = [deltas("stacked", name, (31, 2, 9), 2, {"batch_size": 5}) for _ in range(2)]
    assert torch.equal(*results)


def test_a_stack_leaves_the_gaps_between_parameters_zero() -> None:
    model, _ = create(partial(nn.Linear, 3, 2), 0, torch.float32)
    data = FederatedDataset.from_clients(train={"it": (np.ones((4, 3), np.float32), np.zeros(4, np.int64))})
    section = ClientSection.model_validate({"batch_size": 2, "optimizer": {"momentum": 0.9, "weight_decay": 0.1}})
    model, weights = create(partial(nn.Linear, 3, 2), 0, torch.float32)
    members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
    made = make(TrainerChoice.of_size("stacked", 1), model, weights, task_for(2, None), section, "float32")
    (trained,) = local_training.train(made, weights, members, 0.1, model.params)
    in_gaps = torch.ones(model.params.size, dtype=torch.bool)
    for piece in model.params.pieces(in_gaps):
        piece.fill_(False)
    assert not trained.updates.delta[0, in_gaps].any()
