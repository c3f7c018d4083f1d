"""Train a chunk of clients and add up what they made: a pure function of (broadcast, members, data, seed)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raysim import seeds
from raysim.client import batches
from raysim.client.form import Client, Form, Update
from raysim.client.load import load
from raysim.client.section import ClientSection
from raysim.data.dataset import FederatedDataset
from raysim.errors import RaysimError
from raysim.layout import Layout
from raysim.models.model import Weights


class ClientFailure(Exception):
    """User code failed while the client at this position was trained or evaluated; `__cause__` is what it raised."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


@dataclass(frozen=True)
class Trained:
    """One client's facts, as additive parts: vectors hold until the next client is asked for."""

    position: int
    num_examples: int
    y: Tensor
    update: Update
    squared_norms: Tensor
    finite: bool


def members(
    dataset: FederatedDataset,
    positions: Sequence[int],
    section: ClientSection,
    seed: int,
    round_index: int,
    like: Tensor,
) -> Iterator[Client]:
    """The chunk's clients with data on the device of `like`, floats in its dtype."""
    for position in positions:
        x, y = dataset.train.client(position)
        yield Client(
            position=position,
            num_examples=len(y),
            x=load(x, dataset.x, like.dtype, like.device),
            y=load(y, dataset.y, like.dtype, like.device),
            batches=batches.draw(section, len(y), seed, round_index, position),
            key=seeds.key(seed, "module", round_index, position),
        )


def train(form: Form, broadcast: Weights, clients: Sequence[Client], lr: float, layout: Layout) -> Iterator[Trained]:
    """Train the clients in order and measure each update.

    Raises:
        ClientFailure: user code raised; names the client.
    """
    updates = form.train(broadcast, clients, lr)
    for client in clients:
        try:
            update = next(updates)
        except (RaysimError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ClientFailure(client.position) from error
        norms = torch.stack([torch.linalg.vector_norm(p, dtype=torch.float64) for p in layout.pieces(update.delta)])
        squares = norms.square()
        # A float64 norm overflows only for updates beyond 1e154, which no equation of ours survives either.
        finite = bool(torch.isfinite(squares.sum())) and bool(torch.isfinite(update.buffers).all())
        yield Trained(client.position, client.num_examples, client.y, update, squares, finite)
