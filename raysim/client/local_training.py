"""Trains a chunk of clients and measures their updates: a pure function of (broadcast, members, data, seed)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raysim import seeds
from raysim.client import batches
from raysim.client.augmentations import augment
from raysim.client.augmentations.augment import Augmentation
from raysim.client.corrections.correction import LocalWork
from raysim.client.objective import RoundAt
from raysim.client.section import ClientSection
from raysim.client.trainer import Client, LocalStart, LockstepTrainer, Trainer, Updates
from raysim.client.work import RoundWork
from raysim.data.on_device import Examples
from raysim.errors import RaysimError
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.models.vectors import squared_norm

LARGE = 1 << 18
"""Numbers of one update from which its norm is computed piece by piece, in the cache."""


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
    """Facts of k clients that were trained together; the vectors are valid until the next iteration.

    squared_norms: float64 (k, G), |delta_i|^2 per parameter group. finite: whether each update is. own: the vectors
    (P,) that the clients keep for themselves; empty if they keep none.
    """

    clients: tuple[Client, ...]
    updates: Updates
    squared_norms: Tensor
    finite: tuple[bool, ...]
    own: tuple[Tensor, ...] = ()


def members(
    examples: Examples,
    positions: Sequence[int],
    section: ClientSection,
    seed: int,
    round_index: int,
    like: Tensor,
) -> list[Client]:
    """The chunk's clients with data on the device of `like`, floats in its dtype."""
    at, data = np.array(positions), loaded(examples, positions, like)
    sizes = [len(y) for _, y in data]
    drawn = batches.draw(section, sizes, seed, round_index, positions)
    keys = seeds.keys(seed, "module", round_index, at).tolist()
    round_at = None if section.objective is None else RoundAt(seed, round_index, examples.dataset.train.id_of)
    made = [
        Client(position, len(y), x, y, drawn[i], keys[i], at=round_at)
        for i, (position, (x, y)) in enumerate(zip(positions, data, strict=True))
    ]
    return made if section.augment is None else [_augmented(c, section.augment, seed, round_index) for c in made]


def loaded(examples: Examples, positions: Sequence[int], like: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Each client's training examples as stored, x and y, on the device of `like`, floats in its dtype."""
    sizes = examples.dataset.train.sizes(np.array(positions)).tolist()
    joined = examples.load("train", [(p, 0, n) for p, n in zip(positions, sizes, strict=True)], like)
    x, y = (rows.split_with_sizes(sizes) for rows in joined)
    return list(zip(x, y, strict=True))


def _augmented(client: Client, how: Augmentation, seed: int, round_index: int) -> Client:
    visits, _ = client.visits()
    augmented = augment.visits(how, visits, seed, round_index, client.position)
    return replace(client, x=augment.evaluated(how, client.x), augmented=augmented)


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
    clients: Sequence[Client],
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
    for group in [clients] if trainer.trains_together else [[client] for client in clients]:
        if prepared is not None:
            group = [prepared(client) for client in group]
        for together, updates in _watched(trainer, broadcast, group, lr, start):
            yield measured(together, updates, layout)


def end_of(trainer: Trainer, broadcast: Weights, client: Client, lr: float) -> Tensor:
    """Return where one client's local training ends, (P,); nothing is measured.

    Raises:
        ClientFailure: as `train`.
    """
    ((_, updates),) = _watched(trainer, broadcast, [client], lr, None)
    return broadcast.params + updates.delta[0]


def train_each(
    trainer: LockstepTrainer, starts: Sequence[LocalStart], clients: Sequence[Client], layout: Layout
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
        raise ClientFailure(clients[0].position, others=len(clients) - 1) from error
    whole = measured(tuple(clients) * len(starts), updates, layout)
    return [_part(whole, slice(i * len(clients), (i + 1) * len(clients))) for i in range(len(starts))]


def measured(clients: tuple[Client, ...], updates: Updates, layout: Layout) -> Trained:
    """Return the updates with their squared norms, computed if the trainer has none, and whether each is finite."""
    if (squares := updates.squared_norms) is None:
        squares = squared_norms(layout, updates.delta)
    # A float64 norm overflows only for updates beyond 1e154, which no equation of ours survives either.
    finite = squares.sum(-1).isfinite()
    if updates.buffers.numel():
        finite &= updates.buffers.isfinite().all(-1)
    return Trained(clients, updates, squares, tuple(finite.tolist()))


def squared_norms(layout: Layout, deltas: Tensor) -> Tensor:
    """Return float64 (k, G), |row|^2 per parameter group of (k, P)."""
    return torch.stack([_squared_norms(piece) for piece in layout.pieces(deltas)], dim=-1)


def _squared_norms(piece: Tensor) -> Tensor:
    """float64 (k,), |row|^2 of (k, n); the bits of a row do not depend on the others."""
    if piece.is_cuda or piece.shape[-1] < LARGE:
        norms: Tensor = torch.linalg.vector_norm(piece, dim=-1, dtype=torch.float64)
        return norms.square()
    # A reduction that converts as it reads is slower where the row leaves the cache.
    return torch.tensor([squared_norm(row) for row in piece], dtype=torch.float64)


def _part(whole: Trained, rows: slice) -> Trained:
    made = whole.updates
    updates = Updates(
        made.delta[rows],
        made.buffers[rows],
        made.counters[rows],
        made.loss[rows],
        made.correct[rows],
        made.seen[rows],
        None if made.gradients is None else made.gradients[rows],
        None if made.squared_norms is None else made.squared_norms[rows],
    )
    return Trained(whole.clients[rows], updates, whole.squared_norms[rows], whole.finite[rows])


def full_gradients(trainer: Trainer, broadcast: Weights, clients: Sequence[Client]) -> Iterator[tuple[Client, Tensor]]:
    """Each client's gradient (P,) at the broadcast, of the mean loss over all its examples in one batch.

    `trainer` sums gradients. Modules are in training mode, and draw as in a first local step.
    """
    whole = [replace(c, batches=batches.whole(c.num_examples), offset=None, augmented=None) for c in clients]
    for group in [whole] if trainer.trains_together else [[client] for client in whole]:
        for together, updates in _watched(trainer, broadcast, group, 0.0, None):
            assert updates.gradients is not None
            yield from zip(together, updates.gradients, strict=True)


def _watched(
    trainer: Trainer, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None
) -> Iterator[tuple[tuple[Client, ...], Updates]]:
    """Yield the trainer's updates with their clients; an error of user code becomes a ClientFailure."""
    stream = trainer.train(broadcast, clients, lr, start)
    done = 0
    while done < len(clients):
        try:
            updates = next(stream)
        except (RaysimError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ClientFailure(
                clients[done].position, others=len(clients) - 1 if trainer.trains_together else 0
            ) from error
        together = tuple(clients[done : done + len(updates.seen)])
        done += len(together)
        yield together, updates
