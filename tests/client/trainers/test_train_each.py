"""Clients trained from several starts at once: as if each start were alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainer import LocalStart, LockstepTrainer, Updates
from raysim.client.trainers.construction import make
from raysim.client.trainers.trainer_choice import TrainerChoice, TrainerName
from raysim.data.on_device import Examples
from raysim.models import mlp
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.trainer_models import MODELS, WORK, dataset

RATES = (0.0, 0.03, 0.1)

MORE: dict[str, dict[str, Any]] = {
    "prox": {"batch_size": 4, "correction": {"name": "prox", "mu": 0.2}},
    "prox with momentum": {
        "batch_size": 4,
        "optimizer": {"momentum": 0.5},
        "correction": {"name": "prox", "mu": 0.2},
    },
    "adam": {"batch_size": 4, "optimizer": {"name": "adam"}},
    "adamw": {"batch_size": 4, "optimizer": {"name": "adamw", "weight_decay": 0.1}},
    "adagrad": {"batch_size": 4, "optimizer": {"name": "adagrad"}},
}


def both_ways(
    work: dict[str, Any],
    of: str | tuple[int, int, int] = "mlp",
    dtype: torch.dtype = torch.float64,
    name: TrainerName = "stacked",
) -> list[list[Updates]]:
    """What each start's clients send: from one call for all starts, and from one for each.

    `of`: a model's name, or the widths of an mlp.
    """
    if isinstance(of, str):
        factory, x_shape = MODELS[of]
        classes = 4
    else:
        features, hidden, classes = of
        factory, x_shape = partial(mlp.make, mlp.Mlp(hidden=(hidden,)), (features,), classes), (features,)
    data = dataset(x_shape, classes)
    section = ClientSection.model_validate(work)
    model, weights = create(factory, 0, dtype)
    draw = torch.Generator().manual_seed(0)

    def start(rate: float) -> LocalStart:
        # A product: the gaps between parameters stay 0.
        moved = weights.params * (1 + rate * torch.randn(weights.params.shape, generator=draw, dtype=dtype))
        return LocalStart(replace(weights, params=moved), rate)

    starts = [start(rate) for rate in RATES]
    trainer = make(TrainerChoice.of_size(name, 5), model, weights, task_for(classes, None), section, "float32")
    assert isinstance(trainer, LockstepTrainer)
    members = local_training.members(Examples(data), (0, 1, 2, 3, 4), section, 0, 3, weights.params)
    alone = []
    for own in starts:
        (made,) = trainer.train(own.weights, members, own.lr)
        alone.append(replace(made, delta=made.delta.clone()))
    return [[made.updates for made in local_training.train_each(trainer, starts, members, model.params)], alone]


@pytest.mark.parametrize("work", [*WORK.values(), *MORE.values()], ids=[*WORK, *MORE])
def test_every_start_has_the_updates_that_it_has_alone(work: dict[str, Any]) -> None:
    for together, alone in zip(*both_ways(work), strict=True):
        torch.testing.assert_close(together.delta, alone.delta, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(together.loss, alone.loss, rtol=1e-10, atol=1e-12)
        assert together.correct.tolist() == alone.correct.tolist()
        assert together.seen.tolist() == alone.seen.tolist()
    assert any(alone.delta.abs().max() > 1e-3 for alone in both_ways(work)[1])


@pytest.mark.parametrize("name", ["cnn", "norms"])
def test_so_it_is_with_convolutions_and_norms(name: str) -> None:
    for together, alone in zip(*both_ways({"batch_size": 4, "epochs": 2}, name), strict=True):
        torch.testing.assert_close(together.delta, alone.delta, rtol=1e-10, atol=1e-12)


def test_a_rate_of_zero_moves_nothing() -> None:
    for work in ({"batch_size": 4}, *MORE.values()):
        together, _ = both_ways(work)
        assert not together[0].delta.any()
        assert together[1].delta.any()


@pytest.mark.parametrize("widths", [(5, 8, 3), (60, 37, 10), (64, 64, 10), (16, 16, 16), (33, 1, 2)])
def test_plain_sgd_has_the_same_bits(widths: tuple[int, int, int]) -> None:
    together, alone = both_ways({"batch_size": 4, "epochs": 2}, widths, torch.float32)
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.delta, other.delta)
        assert torch.equal(one.loss, other.loss)


PLAIN = {"plain": {"batch_size": 4, "epochs": 2}, "prox": MORE["prox"]}


@pytest.mark.parametrize("work", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("widths", [(5, 8, 3), (60, 37, 10), (33, 1, 2)])
def test_the_kernel_has_the_same_bits(widths: tuple[int, int, int], work: dict[str, Any]) -> None:
    together, alone = both_ways(work, widths, torch.float32, "compiled")
    for one, other in zip(together, alone, strict=True):
        for name in ("delta", "loss", "correct", "squared_norms", "buffers", "counters"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert one.seen.tolist() == other.seen.tolist()
    assert together[1].delta.any()
    assert not torch.equal(together[1].delta, together[2].delta)
