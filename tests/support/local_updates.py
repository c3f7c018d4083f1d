"""What local training makes of clients by a trainer, for comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers.construction import make
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.data.on_device import Examples
from raysim.models.model import create
from raysim.models.task import task_for

LR = 0.1


def train(
    trainer: str,
    factory: Callable[[], nn.Module],
    data: FederatedDataset,
    work: dict[str, Any],
    positions: tuple[int, ...] = (0, 1, 2, 3, 4),
    loss: Any = None,
    dtype: torch.dtype = torch.float64,
) -> dict[str, torch.Tensor]:
    """What local training makes of the clients: deltas (clients, P), losses, hits and seen examples (clients,)."""
    section = ClientSection.model_validate(work)
    model, weights = create(factory, 0, dtype)
    task = task_for(data.num_classes, loss, data.y.padding, by_place=data.y.by_place)
    made = make(TrainerChoice.of_size(trainer, 5, short_batches="resized"), model, weights, task, section, "float32")  # type: ignore[arg-type]
    members = local_training.members(Examples(data), positions, section, 0, 3, weights.params)
    rows = []
    for trained in local_training.train(made, weights, members, LR, model.params):
        updates = trained.updates
        rows.append((updates.delta.clone(), updates.loss, updates.correct, torch.from_numpy(updates.seen)))
    names = ("delta", "loss", "correct", "seen")
    return {name: torch.cat(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def assert_same(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-10, atol=1e-12, equal_nan=True)
