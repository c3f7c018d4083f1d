"""Skips tests of compiled code where it cannot be had, compiles it for other processors, and trains clients by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers import construction
from raysim.client.trainers.construction import make
from raysim.client.trainers.kernel.dense import SOURCE
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.client.trainers.trainer_table import TrainingConditions, choose
from raysim.data.on_device import Examples
from raysim.models.model import create
from raysim.models.task import task_for
from raysim.storage import compiled_c

PROCESSORS = {"haswell": {"fma", "avx2"}, "x86-64-v2": {"ssse3"}}
"""With vectors of 32 and of 16 bytes, and what a processor that runs their code says of itself."""


def needs_kernel() -> None:
    """Skip the test, saying why, where the compiled kernel cannot be had."""
    if (missing := compiled_c.obstacle(SOURCE, torch.float32)) is not None:
        pytest.skip(f"no kernel: {missing}")


def without_library(patch: pytest.MonkeyPatch, source: compiled_c.CSource) -> None:
    """As on a machine that cannot compile this source."""
    obstacle = compiled_c.obstacle

    def lacking(other: compiled_c.CSource, dtype: torch.dtype) -> str | None:
        return "there is none" if other == source else obstacle(other, dtype)

    patch.setattr(compiled_c, "obstacle", lacking)
    patch.setattr(construction, "obstacle", lacking)


@contextmanager
def compiled_for(processor: str, cache: Path) -> Iterator[None]:
    """Compile for this one of PROCESSORS inside the block, into a cache of its own; skip the test elsewhere."""
    cpu = Path("/proc/cpuinfo")
    flags = set(cpu.read_text(encoding="utf-8").split()) if cpu.exists() else set()
    if not PROCESSORS[processor] <= flags:
        pytest.skip(f"this processor does not run code for {processor}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_CACHE", str(cache))
        patch.setattr(compiled_c, "FOR_THIS_PROCESSOR", ((f"-march={processor}",),))
        _forget()
        try:
            yield
            assert list(cache.glob("kernels-*/*.so"))
        finally:
            _forget()


def _forget() -> None:
    compiled_c.library.cache_clear()
    compiled_c.obstacle.cache_clear()


def chosen(module: nn.Module, **changes: Any) -> TrainerChoice:
    """The trainer of clients with ten examples a batch; `changes`: of the conditions."""
    given: dict[str, Any] = {
        "trainer": "auto", "chunk_size": "auto", "precision": "float32", "dtype": "float32", "device_kind": "cpu",
        "batch_size": 10, "by_kernel": True, "threads": 1,
    }  # fmt: skip
    return choose(TrainingConditions(**(given | changes)), module, task_for(2, None), None, lambda *_: StepObstacles())


def deltas(
    make_module: Callable[[], nn.Module],
    sizes: tuple[int, ...],
    work: dict[str, Any],
    trainer: str = "compiled",
    dtype: torch.dtype = torch.float32,
    features: int = 33,
) -> torch.Tensor:
    """Updates (clients, P) of clients with so many examples; `work`: of the client's section."""
    draw = np.random.default_rng(0)
    data = raysim.FederatedDataset.from_clients(
        train={str(i): (draw.standard_normal((n, features)), draw.integers(0, 7, n)) for i, n in enumerate(sizes)}
    )
    section = ClientSection.model_validate(work)
    model, weights = create(make_module, 0, dtype)
    made = make(TrainerChoice.of_size(trainer, len(sizes)), model, weights, task_for(7, None), section, "float32")  # type: ignore[arg-type]
    members = local_training.members(Examples(data), tuple(range(len(sizes))), section, 0, 0, weights.params)
    return torch.cat([t.updates.delta.clone() for t in local_training.train(made, weights, members, 0.3, model.params)])


def wide() -> nn.Module:
    """Widths that fill no vector, more outputs and rows than a product takes at a time, and a layer without bias."""
    return nn.Sequential(nn.Linear(33, 41), nn.Tanh(), nn.Linear(41, 23, bias=False), nn.ReLU(), nn.Linear(23, 7))
