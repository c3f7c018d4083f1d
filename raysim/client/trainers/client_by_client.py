"""Trains one client after another, and scores them together: for each client by itself that takes as long as some local
steps of a small module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysim.client.chunk_clients import ChunkClients
from raysim.client.trainer import Client, Updates
from raysim.client.trainers.scores import Scores
from raysim.models.model import Weights
from raysim.models.task import Task


class LocalEnd(NamedTuple):
    """Where a client's local training ended: the fields of `Updates` that the trainer holds in memory of its own, each
    with one row."""

    delta: Tensor
    buffers: Tensor
    counters: Tensor
    gradients: Tensor | None = None
    inverses: Tensor | None = None
    own: Tensor | None = None
    samples: tuple[Tensor, ...] | None = None

    def copy(self) -> LocalEnd:
        """Return the same in memory that the next client leaves as it is."""
        return LocalEnd(*map(_copy, self))


class ClientByClient(ABC):
    """Trains the clients of a call one after another; their updates come at once.

    Args:
        task: losses and hits.
    """

    trains_together = False

    def __init__(self, task: Task) -> None:
        self._task = task

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train each client from the broadcast; see `Trainer.train`.

        The updates come at once: before an error, those of the clients before it.
        """
        clients = ChunkClients.of(clients)
        targets = clients.visited_targets()
        scores = Scores.of_clients(self._task, targets, clients.batches.visits)
        ends: list[LocalEnd] = []
        failure: Exception | None = None
        try:
            for client, y in zip(clients, targets.split_with_sizes(clients.batches.visits.tolist()), strict=True):
                end = self._train_one(broadcast, client, y, lr, start, scores)
                ends.append(end if len(clients) == 1 else end.copy())
        except Exception as error:
            failure = error
        if ends:
            yield _together(ends, scores, clients)
        if failure is not None:
            raise failure

    @abstractmethod
    def _train_one(
        self,
        broadcast: Weights,
        client: Client,
        y: Tensor,
        lr: float,
        start: Mapping[str, Tensor] | None,
        scores: Scores,
    ) -> LocalEnd:
        """Train one client.

        Args:
            broadcast, lr, start: as of `Trainer.train`.
            client: the one.
            y: the targets of all its visits.
            scores: keep what its local steps make.
        """


@torch.inference_mode()
def _together(ends: Sequence[LocalEnd], scores: Scores, clients: ChunkClients) -> Updates:
    loss, correct = (each[: len(ends)] for each in scores.totals())
    seen = clients.batches.visits[: len(ends)]
    delta, buffers, counters, gradients, inverses, own, samples = map(_joined, zip(*ends, strict=True))
    return Updates(
        delta, buffers, counters, loss, correct, seen, gradients, inverses=inverses, own=own, samples=samples
    )


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        # A copy of nothing takes as long as one of a small model.
        return value.clone() if value.numel() else value
    return None if value is None else tuple(one.clone() for one in value)


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if len(values) == 1 or first is None:
        assert all(one is None for one in values[1:])
        return first
    return torch.cat(list(values)) if isinstance(first, Tensor) else tuple(one for value in values for one in value)
