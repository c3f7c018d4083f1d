"""Makes small datasets: those that a linear model can tell apart, and those of given sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

from raysim.cohort.sampler import Clients
from raysim.data.dataset import FederatedDataset


def make_clients(sizes: list[int], seed: int = 0, prefix: str = "c") -> dict[str, tuple[Any, Any]]:
    """Clients with 5 features and 3 classes that a linear model can tell apart, of the given sizes."""
    rng = np.random.default_rng(seed)
    truth = np.random.default_rng(99).normal(size=(5, 3))
    clients = {}
    for index, size in enumerate(sizes):
        x = rng.normal(size=(size, 5))
        clients[f"{prefix}{index}"] = (x, (x @ truth).argmax(1))
    return clients


def of_sizes(sizes: Any) -> Clients:
    """The clients of a sampler, with so many examples each."""
    data = FederatedDataset.from_clients(
        train={f"c{i}": (np.zeros((int(n), 1)), np.zeros(int(n))) for i, n in enumerate(sizes)}
    )
    return Clients(data.train)
