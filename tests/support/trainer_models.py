"""Models, work and data on which all ways to train are compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from raysim import FederatedDataset
from raysim.models import cnn, cnn_mcmahan, linear, mlp
from raysim.models.layers import Residual

SIZES = (13, 20, 5, 1, 8)


def with_norms() -> nn.Module:
    """Norms and ways around, over images."""
    inside = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU())
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(4, 4), nn.ReLU(), Residual(inside), nn.Flatten(), nn.Linear(80, 6),
        nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 4),
    )  # fmt: skip


class Written(nn.Module):
    """A class with a forward of its own, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        # In another order than they are called.
        self.head = nn.Linear(5, 4)
        self.fc = nn.Linear(12, 5)
        self.convs = nn.ModuleList([nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 1)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for conv in self.convs:
            x = functional.relu(conv(x))
        x = functional.max_pool2d(x, 2)
        return self.head(torch.tanh(self.fc(x.view(x.size(0), -1))))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (partial(linear.make, linear.Linear(), (6,), 4), (6,)),
    "mlp": (partial(mlp.make, mlp.Mlp(hidden=(7, 5)), (6,), 4), (6,)),
    "mlp_tanh": (partial(mlp.make, mlp.Mlp(hidden=(7, 5), activation="tanh"), (6,), 4), (6,)),
    "cnn": (partial(cnn.make, cnn.Cnn(), (2, 8, 9), 4), (2, 8, 9)),
    "cnn_mcmahan": (partial(cnn_mcmahan.make, cnn_mcmahan.CnnMcmahan(), (1, 8, 8), 4), (1, 8, 8)),
    "norms": (with_norms, (2, 6, 7)),
    "written": (Written, (2, 6, 7)),
    "no channels": (lambda: nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(9, 4)), (6, 7)),
}

WORK: dict[str, dict[str, Any]] = {
    "epochs with short last batches": {"batch_size": 4, "epochs": 2},
    "local steps across epochs": {"batch_size": 4, "local_steps": 7},
    "full batch": {"batch_size": "full", "epochs": 3},
    "last batch filled": {"batch_size": 4, "fill_last_batch": True},
    "last batch left out": {"batch_size": 4, "drop_last": True, "epochs": 2},
    "stored order": {"batch_size": 4, "shuffle": False},
    "momentum": {"batch_size": 4, "optimizer": {"momentum": 0.9}},
    "weight decay": {"batch_size": 4, "optimizer": {"weight_decay": 0.1}},
    "clipped gradients": {"batch_size": 4, "max_grad_norm": 0.3},
    "all at once": {"batch_size": 4, "optimizer": {"momentum": 0.5, "weight_decay": 0.1}, "max_grad_norm": 0.3},
}


def dataset(x_shape: tuple[int, ...], classes: int | None, y_shape: tuple[int, ...] = ()) -> FederatedDataset:
    draw = np.random.default_rng(0)
    return FederatedDataset.from_clients(
        train={
            f"client of {n}": (
                draw.standard_normal((n, *x_shape)),
                draw.integers(0, classes, (n, *y_shape)) if classes else draw.standard_normal((n, *y_shape)),
            )
            for n in SIZES
        }
    )
