"""Makes the small federation on which parts are checked: unequal clients, a model whose vector has gaps."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysim.config import overrides
from raysim.data.dataset import FederatedDataset
from raysim.experiment.experiment import Experiment

FEATURES, CLASSES, ROUNDS = 5, 3, 4

EXPERIMENT: Mapping[str, Any] = MappingProxyType(
    {
        "name": "check-part",
        "rounds": ROUNDS,
        "client": {"batch_size": 4, "local_steps": 3},
        "cohort": {"size": 6},
        "evaluation": {"every": 2},
        "engine": {"workers": 0, "cpus_per_worker": 0.25, "chunk_size": 2},
        "checkpoint": {"every": 1},
    }
)


def dataset() -> FederatedDataset:
    """Ten unequal training clients and two test clients, of random examples."""
    draw = np.random.default_rng(0)

    def client(size: int) -> tuple[Any, Any]:
        return draw.normal(size=(size, FEATURES)).astype(np.float32), draw.integers(0, CLASSES, size)

    train = {f"c{i}": client(3 + 2 * i) for i in range(10)}
    return FederatedDataset.from_clients(train=train, test={f"t{i}": client(20) for i in range(2)})


def experiment(keys: Mapping[str, Any], **engine: Any) -> Experiment:
    """The experiment on it, with keys and their values by dotted names, and keys of the engine."""
    changes = {**keys, **{f"engine.{key}": value for key, value in engine.items()}}
    return Experiment.model_validate(overrides.apply(EXPERIMENT, changes, ()))


def plain() -> nn.Module:
    """A model that every trainer takes."""
    return nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh(), nn.Linear(7, CLASSES))


class Mortal(nn.Module):
    """The same in a module that only autograd takes, and that ends its worker once.

    Args:
        note: the file whose presence ends a worker; it is removed by then.
        script: the process that asks for the run, which is spared.
    """

    def __init__(self, note: Path, script: int) -> None:
        super().__init__()
        self.inner, self._note, self._script = plain(), note, script

    def forward(self, x: Tensor) -> Tensor:
        """As the inner module."""
        if os.getpid() != self._script and torch.is_grad_enabled() and self._note.exists():
            self._note.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        outputs: Tensor = self.inner(x)
        return outputs


class Factory:
    """Makes `Mortal` modules; a worker can import it."""

    def __init__(self, note: Path) -> None:
        self._note, self._script = note, os.getpid()

    def __call__(self) -> nn.Module:
        """A new module."""
        return Mortal(self._note, self._script)
