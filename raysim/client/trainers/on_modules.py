"""Trains one client after another on modules that lie over memory of the trainer's own."""

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
from raysim.client.trainers.class_scores import Scorer
from raysim.client.trainers.client_by_client import LocalEnd, trained
from raysim.client.trainers.scores import Scores
from raysim.config.unwritten import check_unwritten, versions
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class VisitBatches:
    """The batches of a client's visits: views that are made when they are asked for.

    Args:
        visits: one row each, in the order of the local steps.
        bounds: where each batch begins, and where the last one ends.

    >>> batches = VisitBatches(torch.arange(5), (0, 3, 5))
    >>> [one.tolist() for one in batches], batches[-1].tolist(), batches.lengths
    ([[0, 1, 2], [3, 4]], [3, 4], [3, 2])
    """

    def __init__(self, visits: Tensor, bounds: Sequence[int]) -> None:
        self.visits, self._bounds = visits, bounds
        self.lengths = [stop - first for first, stop in pairwise(bounds)]
        """How many rows each batch has."""

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> Tensor:
        at = range(len(self))[index]
        return self.visits[self._bounds[at] : self._bounds[at + 1]]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.visits.split_with_sizes(self.lengths))


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """What a client trains on, x and y; the arguments of `Trainer.train`; and who keeps what the steps make."""

    x: VisitBatches
    y: VisitBatches
    broadcast: Weights
    client: Client
    lr: float
    start: Mapping[str, Tensor] | None
    scores: Scores


class OnModules(ABC):
    """Loads the broadcast, divides a client's examples into batches, and records local steps, where that can be done.

    Args:
        task: losses and hits.
        modules: over memory of their own; each local step uses all of them.
        model: factory and layouts.
        objective: stands in for the task's losses.
        scorer: computes losses and hits together, where it can.
    """

    trains_together = False

    def __init__(
        self,
        task: Task,
        modules: Sequence[BoundModule],
        model: Model,
        objective: LocalObjective | None,
        scorer: Scorer | None = None,
    ) -> None:
        self._task, self._modules, self._model, self._objective = task, modules, model, objective
        self._scorer = scorer

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train each client from the broadcast; see `Trainer.train`."""

        def train_one(client: Client, targets: Tensor, scores: Scores) -> LocalEnd:
            bounds = client.batches.bounds
            batches = VisitBatches(client.visited_inputs(), bounds), VisitBatches(targets, bounds)
            return self._train_one(LocalTraining(*batches, broadcast, client, lr, start, scores))

        return trained(self._task, clients, train_one, self._scorer)

    @torch.no_grad()
    def _train_one(self, given: LocalTraining) -> LocalEnd:
        x, y, broadcast, client = given.x, given.y, given.broadcast, given.client
        for module in self._modules:
            module.load(broadcast)
        # Each module records, also behind one with steps by autograd: else its recordings depend on earlier clients.
        of_each = [module.record(x, y, y.lengths) for module in self._modules]
        # Where all steps are recorded, what lies between them is quicker too without what torch notes for autograd.
        recorded = all(of_each)
        # What else a module draws, it draws from torch's generator: started at the client's key, it is addressed too.
        card.start_generators(client.key, client.x.device)
        before = versions(y.visits, broadcast.params)
        with torch.inference_mode(recorded):
            end = self._train_on(given)
        if self._objective is not None:
            check_unwritten("objective=", before, {"y": y.visits, "at.broadcast": broadcast.params})
        if not recorded:
            for module in self._modules:
                module.check_kept()
        return end

    @abstractmethod
    def _train_on(self, given: LocalTraining) -> LocalEnd:
        """Train from the broadcast, which the modules have loaded."""

    def _at(self, client: Client, step: int, received: Received) -> ObjectiveAt | None:
        if self._objective is None:
            return None
        assert client.at is not None
        return ObjectiveAt(client.at, client.position, step, self._objective.constants, received, client.x.device)
