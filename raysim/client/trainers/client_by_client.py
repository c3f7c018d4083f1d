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
from raysim.client.trainer import Client, OneOfSeveralError, Updates
from raysim.client.trainers.class_scores import Scorer
from raysim.client.trainers.scores import MOST_KEPT, Scores
from raysim.errors import RaysimError
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
"""(client, targets of all its visits, what keeps what its local steps put out) -> where its local training ended. The
next client may write to the same memory."""


def trained(
    task: Task, clients: Sequence[Client], train_one: TrainOne, scorer: Scorer | None = None
) -> Iterator[Updates]:
    """Train each client, and yield all updates at once; before an error, those of the clients before it.

    Args:
        task: losses and hits.
        clients: in order.
        train_one: trains one of them.
        scorer: computes losses and hits together, where it can.

    Raises:
        OneOfSeveralError: scoring failed.
    """
    clients = ChunkClients.of(clients)
    ends: list[LocalEnd] = []
    loss, correct = (torch.zeros(len(clients), dtype=torch.float64) for _ in range(2))
    failure: Exception | None = None
    for part in _parts(clients):
        first, targets, visits = len(ends), part.visited_targets(), part.batches.visits
        scores = Scores.of_clients(task, targets, visits, scorer)
        try:
            for client, own_targets in zip(part, targets.split_with_sizes(visits.tolist()), strict=True):
                end = train_one(client, own_targets, scores)
                ends.append(end if len(clients) == 1 else end.copy())
        except Exception as error:
            failure = error
        done = len(ends) - first
        try:
            with torch.inference_mode():
                totals = scores.totals()
        except Exception as error:
            del ends[first:]
            failure = error
            if not isinstance(error, RaysimError | torch.OutOfMemoryError):
                # What a client put out that failed in training is scored with the others'.
                failure = OneOfSeveralError(min(done, len(part) - 1))
                failure.__cause__ = error
        else:
            loss[first : len(ends)], correct[first : len(ends)] = (each[:done] for each in totals)
        if failure is not None:
            break
    if ends:
        yield _together(ends, loss[: len(ends)], correct[: len(ends)], clients.batches.visits[: len(ends)])
    if failure is not None:
        try:
            raise failure
        finally:
            # Its traceback holds this frame, and so itself.
            del failure


def _parts(clients: ChunkClients) -> Iterator[ChunkClients]:
    """Yield the clients, as many at a time as have few targets in all visits together; at least one."""
    numbers = clients.y[:1].numel() * clients.batches.visits
    first = total = 0
    for at, own in enumerate(numbers.tolist()):
        if at > first and total + own > MOST_KEPT:
            yield clients[first:at]
            first, total = at, 0
        total += own
    yield clients[first:]


@torch.no_grad()
def _together(ends: Sequence[LocalEnd], loss: Tensor, correct: Tensor, seen: Int64s) -> Updates:
    delta, buffers, counters, gradients, inverses, own, samples = map(_joined, zip(*ends, strict=True))
    return Updates(
        delta, buffers, counters, loss, correct, seen, gradients, inverses=inverses, own=own, samples=samples
    )


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        # A copy of nothing takes as long as one of a small model.
        return value.clone() if value.numel() else value
    if value is None:
        return None
    return tuple(one.clone() for one in value)


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if len(values) == 1 or first is None:
        assert all(one is None for one in values[1:])
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(values))
    return tuple(one for value in values for one in value)
