"""Trains one client after another, on modules that lie over memory of the trainer's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from raysim import card
from raysim.client.objective import LocalObjective, ObjectiveAt, Received
from raysim.client.trainer import Client, Updates
from raysim.client.trainers.bound_module import BoundModule
from raysim.config.unwritten import check_unwritten, versions
from raysim.models.model import Model, Weights


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """What a client trains on: batches x and y, all of y (`targets`), and the arguments of `Trainer.train`."""

    x: Sequence[Tensor]
    y: Sequence[Tensor]
    targets: Tensor
    broadcast: Weights
    client: Client
    lr: float
    start: Mapping[str, Tensor] | None


class ClientByClient(ABC):
    """Loads the broadcast, divides a client's examples into batches, and records local steps, where that can be done.

    Args:
        modules: over memory of their own; each local step uses all of them.
        model: factory and layouts.
        objective: stands in for the task's losses.
    """

    trains_together = False

    def __init__(self, modules: Sequence[BoundModule], model: Model, objective: LocalObjective | None) -> None:
        self._modules, self._model, self._objective = modules, model, objective

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train each client from the broadcast; see `Trainer.train`."""
        for client in clients:
            yield self._train_one(broadcast, client, lr, start)

    @torch.no_grad()
    def _train_one(self, broadcast: Weights, client: Client, lr: float, start: Mapping[str, Tensor] | None) -> Updates:
        for module in self._modules:
            module.load(broadcast)
        lengths = [stop - first for first, stop in pairwise(client.batches.bounds)]
        x, y = client.visits()
        batches = x.split_with_sizes(lengths), y.split_with_sizes(lengths)
        # Each module records, also behind one with steps by autograd: else its recordings depend on earlier clients.
        of_each = [module.record(*batches, lengths) for module in self._modules]
        # Where all steps are recorded, what lies between them is quicker too without what torch notes for autograd.
        recorded = all(of_each)
        # What else a module draws, it draws from torch's generator: started at the client's key, it is addressed too.
        card.start_generators(client.key, client.x.device)
        before = versions(y, broadcast.params)
        with torch.inference_mode(recorded):
            updates = self._train_on(LocalTraining(*batches, y, broadcast, client, lr, start))
        if self._objective is not None:
            check_unwritten("objective=", before, {"y": y, "at.broadcast": broadcast.params})
        if not recorded:
            for module in self._modules:
                module.check_kept()
        return updates

    @abstractmethod
    def _train_on(self, given: LocalTraining) -> Updates:
        """Train from the broadcast, which the modules have loaded."""

    def _at(self, client: Client, step: int, received: Received) -> ObjectiveAt | None:
        if self._objective is None:
            return None
        assert client.at is not None
        return ObjectiveAt(client.at, client.position, step, self._objective.constants, received, client.x.device)
