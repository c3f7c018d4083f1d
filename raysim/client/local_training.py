"""Trains a chunk of clients and measures their updates: a pure function of (broadcast, members, data, seed)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raysim import seeds
from raysim.arrays import Bools, Int64s
from raysim.client import batches
from raysim.client.augmentations import augment
from raysim.client.augmentations.augment import Augmentation
from raysim.client.batches import ClientBatches
from raysim.client.chunk_clients import NO_INPUTS, ChunkClients
from raysim.client.corrections.correction import LocalWork
from raysim.client.objective import RoundAt
from raysim.client.section import ClientSection
from raysim.client.trainer import Client, LocalStart, LockstepTrainer, OneOfSeveralError, Trainer, Updates
from raysim.client.work import RoundWork
from raysim.data.on_device import Examples
from raysim.errors import RaysimError
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.models.squared_norms import squared_norms

GATHERED = 1 << 18
"""Numbers of updates, and of buffers, of clients that are trained one after another, up to which they are scored,
measured and added up together. For each client by itself that takes as long as ten local steps of a small module; and
so many stay in a core's cache. What some rules ask for beside the updates (means of gradients) is not counted."""


class ClientFailure(Exception):
    """User code failed while the client at this position was trained or evaluated; `__cause__` is what it raised.

    `others` counts the clients that were worked on together with it, any of which may be the one.
    """

    def __init__(self, position: int, others: int = 0) -> None:
        super().__init__(position, others)
        self.position = position
        self.others = others


@contextmanager
def working_on(position: int) -> Iterator[None]:
    """What user code raises in the block comes out as a ClientFailure of the client at this position."""
    try:
        yield
    except (RaysimError, ClientFailure, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ClientFailure(position) from error


@dataclass(frozen=True)
class Trained:
    """Facts of k clients that were measured together; the vectors are valid until the next iteration.

    squared_norms: float64 (k, G), |delta_i|^2 per parameter group. finite: (k,), whether each update is. own: the
    vectors (P,) that the clients keep for themselves; empty if they keep none.
    """

    clients: ChunkClients
    updates: Updates
    squared_norms: Tensor
    finite: Bools
    own: tuple[Tensor, ...] = ()


def members(
    examples: Examples,
    positions: Sequence[int] | Int64s,
    section: ClientSection,
    seed: int,
    round_index: int,
    like: Tensor,
) -> ChunkClients:
    """The chunk's clients with data on the device of `like`, floats in its dtype."""
    positions = np.asarray(positions, np.int64)
    sizes, x, y = load_clients(examples, positions, like)
    clients = ChunkClients(
        positions=positions,
        num_examples=sizes,
        x=x,
        y=y,
        batches=batches.draw(section, sizes, seed, round_index, positions),
        keys=seeds.keys(seed, "module", round_index, positions),
        at=None if section.objective is None else RoundAt(seed, round_index, examples.dataset.train.id_of),
    )
    return clients if section.augment is None else _augmented(clients, section.augment, seed, round_index)


def load_clients(examples: Examples, positions: Int64s, like: Tensor) -> tuple[Int64s, Tensor, Tensor]:
    """How many training examples each client has, and all of them as stored, x and y, one client's behind the other's,
    on the device of `like`, floats in its dtype.
    """
    sizes = examples.dataset.train.sizes(positions)
    return sizes, *examples.load("train", np.stack([positions, np.zeros_like(sizes), sizes], axis=1), like)


def _augmented(clients: ChunkClients, how: Augmentation, seed: int, round_index: int) -> ChunkClients:
    visits = clients.visited_inputs().split_with_sizes(clients.batches.visits.tolist())
    augmented = [
        augment.visits(how, own, seed, round_index, position)
        for own, position in zip(visits, clients.positions.tolist(), strict=True)
    ]
    return replace(clients, x=augment.for_evaluation(how, clients.x), augmented=torch.cat(augmented))


def with_windows(
    windows: Callable[[LocalWork], Sequence[tuple[int, int]]], work: RoundWork, round_index: int, client: Client
) -> Client:
    """Return the client with a correction's windows of local steps."""
    unit = 1 if work.local_steps is not None else int(work.epoch(np.array([client.num_examples]))[1][0])
    with working_on(client.position):
        return replace(client, windows=tuple(windows(LocalWork(round_index, client.batches.num_steps, unit))))


def train(
    trainer: Trainer,
    broadcast: Weights,
    clients: ChunkClients,
    lr: float,
    layout: Layout,
    prepared: Callable[[Client], Client] | None = None,
    start: Mapping[str, Tensor] | None = None,
) -> Iterator[Trained]:
    """Train the clients in order and measure their updates.

    Args:
        prepared: returns a client with a correction's vectors; called when the client's turn comes, so that no more of
            them are held than the trainer is given clients at a time: one, or a chunk.
        start: what the optimizer's state starts as, (P,) each, where that is not for the optimizer to say.

    Raises:
        ClientFailure: user code raised; names the client, or the first of those trained together.
    """
    gathered = 1
    if prepared is None and not clients.inputs.windows:
        gathered = max(1, GATHERED // max(1, len(broadcast.params) + len(broadcast.buffers)))
    for group in _turns(trainer, clients, gathered):
        if prepared is not None:
            group = group.with_each(prepared)
        for together, updates in _watched(trainer, broadcast, group, lr, start):
            yield with_norms(together, updates, layout, _keep_form(updates.buffers, broadcast.buffers))


def _turns(trainer: Trainer, clients: ChunkClients, gathered: int = 1) -> Iterator[ChunkClients]:
    """Yield the clients that the trainer is given at a time: all if it trains them together, else `gathered`."""
    size = max(1, len(clients)) if trainer.trains_together else gathered
    return (clients[first : first + size] for first in range(0, len(clients), size))


def end_of(trainer: Trainer, broadcast: Weights, client: Client, lr: float) -> Tensor:
    """Return where one client's local training ends, (P,); nothing is measured.

    Raises:
        ClientFailure: as `train`.
    """
    ((_, updates),) = _watched(trainer, broadcast, ChunkClients.of([client]), lr, None)
    return broadcast.params + updates.delta[0]


def train_each(
    trainer: LockstepTrainer, starts: Sequence[LocalStart], clients: ChunkClients, layout: Layout
) -> list[Trained]:
    """The clients trained from each start, all at once (see `LockstepTrainer`), and measured.

    Raises:
        ClientFailure: as `train`.
    """
    try:
        updates = trainer.train_each(starts, clients)
    except (RaysimError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ClientFailure(int(clients.positions[0]), others=len(clients) - 1) from error
    # Modules of these trainers have no buffers.
    squares, finite = _measures(updates, layout)
    of_starts = [slice(i * len(clients), (i + 1) * len(clients)) for i in range(len(starts))]
    return [Trained(clients, _part(updates, rows), squares[rows], finite[rows]) for rows in of_starts]


def with_norms(clients: ChunkClients, updates: Updates, layout: Layout, beside: Bools) -> Trained:
    """Return the updates with their squared norms, computed if the trainer has none, and whether each is finite.

    `beside`: (k,), whether what goes with each update is; of updates that are measured anew, `Trained.finite`.
    """
    squares, finite = _measures(updates, layout)
    return Trained(clients, updates, squares, finite & beside)


def _keep_form(buffers: Tensor, received: Tensor) -> Bools:
    """Return whether each row of buffers (k, B) is finite, but for numbers that came so, such as a mask's -inf.

    >>> mask = torch.tensor([0.0, -torch.inf])
    >>> _keep_form(torch.stack([mask, mask + torch.tensor([torch.inf, 0.0])]), mask).tolist()
    [True, False]
    """
    if not buffers.numel():
        return np.ones(len(buffers), dtype=np.bool_)
    is_finite = buffers.isfinite()
    if not bool(is_finite.all()):
        is_finite |= (buffers == received) | (buffers.isnan() & received.isnan())
    return is_finite.all(-1).numpy(force=True)


def _measures(updates: Updates, layout: Layout) -> tuple[Tensor, Bools]:
    if (squares := updates.squared_norms) is None:
        squares = squared_norms(layout, updates.delta)
    # A float64 norm overflows only for updates beyond 1e154, which no equation of ours survives either.
    return squares, squares.sum(-1).isfinite().numpy(force=True)


def _part(updates: Updates, rows: slice) -> Updates:
    return Updates(
        updates.delta[rows],
        updates.buffers[rows],
        updates.counters[rows],
        updates.loss[rows],
        updates.correct[rows],
        updates.seen[rows],
        None if updates.gradients is None else updates.gradients[rows],
        None if updates.squared_norms is None else updates.squared_norms[rows],
    )


def full_gradients(
    trainer: Trainer, broadcast: Weights, clients: ChunkClients
) -> Iterator[tuple[ChunkClients, Tensor]]:
    """Clients with their gradients (k, P) at the broadcast, of the mean loss over all examples in one batch.

    `trainer` sums gradients. Modules are in training mode, and draw as in a first local step.
    """
    whole = replace(clients, batches=ClientBatches.whole(clients.num_examples), augmented=None, inputs=NO_INPUTS)
    for group in _turns(trainer, whole):
        for together, updates in _watched(trainer, broadcast, group, 0.0, None):
            assert updates.gradients is not None
            yield together, updates.gradients


def _watched(
    trainer: Trainer, broadcast: Weights, clients: ChunkClients, lr: float, start: Mapping[str, Tensor] | None
) -> Iterator[tuple[ChunkClients, Updates]]:
    """Yield the trainer's updates with their clients; an error of user code becomes a ClientFailure."""
    stream = trainer.train(broadcast, clients, lr, start)
    done = 0
    while done < len(clients):
        try:
            updates = next(stream)
        except (RaysimError, torch.OutOfMemoryError):
            raise
        except OneOfSeveralError as error:
            raise ClientFailure(int(clients.positions[done]), others=error.others) from error.__cause__
        except Exception as error:
            others = len(clients) - 1 if trainer.trains_together else 0
            raise ClientFailure(int(clients.positions[done]), others=others) from error
        together = clients[done : done + len(updates.seen)]
        done += len(together)
        yield together, updates
