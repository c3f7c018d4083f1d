"""Runs whose clients' updates the test chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import raysim

Make = Callable[..., raysim.Experiment]
Array = np.ndarray[Any, np.dtype[np.float64]]

rng = np.random.default_rng(4)
UPDATES = rng.normal(size=(9, 3))
UPDATES[4] += 30
SIZES = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5])


def network() -> nn.Module:
    return nn.Linear(3, 1, bias=False)


def push(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss is the output, so the gradient is x: a full-batch step at lr 1 moves the weights by -x."""
    return outputs[:, 0]


def run(make: Make, vectors: Array = UPDATES, rounds: int = 1, parts: Any = None, **sections: Any) -> list[Any]:
    """Client i has SIZES[i] examples, and its update is vectors[i] whatever the model; `parts` are passed on."""
    clients = {
        f"c{i}": (np.tile(-v, (n, 1)), np.zeros(n)) for i, (v, n) in enumerate(zip(vectors, SIZES, strict=False))
    }
    exp = make(
        **{
            "rounds": rounds,
            "model": None,
            "client": {"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full"},
            "cohort": {"sampler": {"name": "replay", "cohorts": [list(clients)] * rounds}},
            "engine": {"workers": 0, "dtype": "float64", "chunk_size": 2},
            **sections,
        }
    )
    data = raysim.FederatedDataset.from_clients(train=clients)
    passed = {"dataset": data, "model": network, "loss": push, "params": {"weight": np.zeros((1, 3))}, **(parts or {})}
    return list(raysim.rounds(exp, **passed))


def moved(make: Make, **sections: Any) -> Array:
    (done,) = run(make, **sections)
    return np.asarray(done.params["weight"].numpy()[0])
