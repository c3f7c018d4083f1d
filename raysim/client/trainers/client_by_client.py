"""Trains one client after another, and scores them together.

To score each client by itself takes as long as some local steps of a small module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.chunk_clients import ChunkClients
from raysim.client.trainer import Client, Updates
from raysim.client.trainers.scores import Scores
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


TrainOne = Callable[[Client, Tensor, Scores], LocalEnd]
"""(client, targets of all its visits, what keeps what its local steps put out) -> where its local training ended."""


def trained(task: Task, clients: Sequence[Client], train_one: TrainOne) -> Iterator[Updates]:
    """Train each client, and yield all updates at once; before an error, those of the clients before it."""
    clients = ChunkClients.of(clients)
    targets, visits = clients.visited_targets(), clients.batches.visits
    scores = Scores.of_clients(task, targets, visits)
    ends: list[LocalEnd] = []
    failure: Exception | None = None
    try:
        for client, own_targets in zip(clients, targets.split_with_sizes(visits.tolist()), strict=True):
            end = train_one(client, own_targets, scores)
            ends.append(end if len(clients) == 1 else end.copy())
    except Exception as error:
        failure = error
    if ends:
        yield _together(ends, scores, visits[: len(ends)])
    if failure is not None:
        raise failure


@torch.inference_mode()
def _together(ends: Sequence[LocalEnd], scores: Scores, seen: Int64s) -> Updates:
    loss, correct = (each[: len(ends)] for each in scores.totals())
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
