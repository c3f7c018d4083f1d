"""Train a chunk of clients and measure what they made: a pure function of (broadcast, members, data, seed)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raysim import seeds
from raysim.client import batches
from raysim.client.augmentations import augment
from raysim.client.form import Client, Form, Updates
from raysim.client.load import load_joined
from raysim.client.section import ClientSection
from raysim.data.dataset import FederatedDataset
from raysim.errors import RaysimError
from raysim.layout import Layout
from raysim.models.model import Weights


class ClientFailure(Exception):
    """User code failed while the client at this position was trained or evaluated; `__cause__` is what it raised.

    `others` counts the clients that were worked on together with it, any of which may be the one.
    """

    def __init__(self, position: int, others: int = 0) -> None:
        super().__init__(position, others)
        self.position = position
        self.others = others


@dataclass(frozen=True)
class Trained:
    """Facts of k clients that were trained together: vectors hold until the next ones are asked for.

    squared_norms: float64 (k, G), |delta_i|^2 per parameter group. finite: whether each update is.
    """

    clients: tuple[Client, ...]
    updates: Updates
    squared_norms: Tensor
    finite: tuple[bool, ...]


def members(
    dataset: FederatedDataset,
    positions: Sequence[int],
    section: ClientSection,
    seed: int,
    round_index: int,
    like: Tensor,
) -> list[Client]:
    """The chunk's clients with data on the device of `like`, floats in its dtype."""
    rows = [dataset.train.client(position) for position in positions]
    sizes = [len(y) for _, y in rows]
    x = load_joined([x for x, _ in rows], dataset.x, like.dtype, like.device).split_with_sizes(sizes)
    y = load_joined([y for _, y in rows], dataset.y, like.dtype, like.device).split_with_sizes(sizes)
    drawn = batches.draw(section, sizes, seed, round_index, positions)
    keys = seeds.keys(seed, "module", round_index, np.array(positions)).tolist()
    made = [
        Client(position, n, x[i], y[i], drawn[i], keys[i])
        for i, (position, n) in enumerate(zip(positions, sizes, strict=True))
    ]
    if (how := section.augment) is None:
        return made
    return [replace(c, augmented=augment.visits(how, c.visits()[0], seed, round_index, c.position)) for c in made]


def train(form: Form, broadcast: Weights, clients: Sequence[Client], lr: float, layout: Layout) -> Iterator[Trained]:
    """Train the clients in order and measure their updates.

    Raises:
        ClientFailure: user code raised; names the client, or the first of those trained together.
    """
    stream = form.train(broadcast, clients, lr)
    done = 0
    while done < len(clients):
        try:
            updates = next(stream)
        except (RaysimError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ClientFailure(
                clients[done].position, others=len(clients) - 1 if form.trains_together else 0
            ) from error
        together = tuple(clients[done : done + len(updates.seen)])
        done += len(together)
        norms = [torch.linalg.vector_norm(p, dim=-1, dtype=torch.float64) for p in layout.pieces(updates.delta)]
        squares = torch.stack(norms, dim=-1).square()
        # A float64 norm overflows only for updates beyond 1e154, which no equation of ours survives either.
        finite = squares.sum(-1).isfinite()
        if updates.buffers.numel():
            finite &= updates.buffers.isfinite().all(-1)
        yield Trained(together, updates, squares, tuple(finite.tolist()))
