"""The simulated Ray with real training: runs of a study that share workers, on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import pytest
import torch

from raysim.engine import numerics
from raysim.engine.job import Kind, RunStates
from raysim.engine.many.segment import Advanced, Host, SegmentUnit
from raysim.engine.on_ray.cluster import cluster
from raysim.engine.on_ray.executor import client_pool
from raysim.engine.on_ray.executor import shared_on_ray as several
from tests.support.simulated_ray import SimulatedHost, SimulatedRay, simulated


@dataclass(frozen=True)
class TrainingHost:
    """Trains a segment, which takes the virtual time that the test says."""

    played: SimulatedHost
    host: Host

    def run(self, kind: Kind, sent: RunStates, index: int, unit: SegmentUnit, kept: None) -> list[Advanced]:
        self.played.run(kind, sent, index, unit, kept)
        return self.host.run(kind, sent, index, unit, kept)


@contextmanager
def training(monkeypatch: pytest.MonkeyPatch, room: dict[str, int]) -> Iterator[SimulatedRay]:
    """A cluster in Ray's place, on which `raysim.Runs` with workers trains."""
    with monkeypatch.context() as patch, numerics.fixed(1, torch.device("cpu"), "float32"):
        ray = simulated(patch, room)
        patch.setattr(client_pool, "Host", lambda name, share: TrainingHost(ray.host(name, share), Host(name)))
        patch.setattr(cluster, "connected", lambda address: nullcontext())
        for module, function in ((several, "receive_plan"), (client_pool, "receive")):
            patch.setattr(module, function, lambda sent: sent)
        patch.setattr(several, "send", lambda data, wait_s: data)
        patch.setattr(several, "send_plan", lambda plan, wait_s, data: plan)
        yield ray
