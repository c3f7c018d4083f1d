"""What tests of several nodes share: a plan whose model travels through the object store, and traps in its loss."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import torch

import raysim
from raysim.engine.in_process import InProcess
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds import loop
from raysim.models.softmax import cross_entropy

Make = Callable[..., raysim.Experiment]


def until(happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def plan_of(experiment: Make, dataset: raysim.FederatedDataset, loss: Any = None, **sections: Any) -> Plan:
    """Three rounds of a model too large to travel inside a call; a chunk is a client."""
    asked: dict[str, Any] = {
        "rounds": 3,
        "model": {"name": "mlp", "hidden": [8192]},
        "client": {"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": "full"},
        "cohort": {"size": 11},
        "engine": {"workers": 0, "chunk_size": 1, "trainer": "one_by_one"},
    }
    return resolve(experiment(**{**asked, **sections}), dataset=dataset, loss=loss)


def params(rounds: Any) -> list[torch.Tensor]:
    return [finished.weights.params for finished in rounds]


def alone(plan: Plan) -> list[torch.Tensor]:
    return params(loop.rounds(plan, InProcess(plan), plan.initial_state()))


def assert_same(got: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(got) == len(expected)
    assert all(torch.equal(left, right) for left, right in zip(got, expected, strict=True))


class OnNode:
    """The task's own loss; on one node a training step of it calls `then`, once, when `trap` was set."""

    def __init__(self, node: str, trap: Path, then: Callable[[], None]) -> None:
        self.node, self.trap, self.then = node, trap, then

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.requires_grad and ray.get_runtime_context().get_node_id() == self.node:
            with suppress(FileNotFoundError):
                self.trap.rename(sprung(self.trap))
                self.then()
        return cross_entropy(outputs, targets)


def sprung(trap: Path) -> Path:
    return trap.with_suffix(".sprung")


def never_return() -> None:
    time.sleep(600)


class Until:
    """Returns when a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self) -> None:
        until(self.file.exists)


TWO_EACH = Placement(workers=4, cpus=2, gpus=0)
"""Two workers on each of two nodes."""
