"""How the local steps of a chunk lie behind each other when its clients are trained together.

Clients are sorted by local steps, most first, so that those still at work are a prefix. A batch shorter than the
longest of its step is filled up with rows that count for nothing. Where every client is trained from several starts, it
is a member several times, one behind the other; its examples are held once.

Batches are filled up to whole blocks as well, so that every client's part of an activation is aligned whatever an
example's width: otherwise a client's bits would depend on its place (layers/parameter.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.batches import ClientBatches
from raysim.client.chunk_clients import ChunkClients
from raysim.client.trainers.layers.parameter import BLOCK_BYTES


@dataclass(frozen=True)
class Together:
    """A chunk's data in the order of its local steps; a *row* is one example in one local step.

    members: which client each member is: most local steps first, each client `times` times. place: where the clients,
    in the order given, stand among them for the first time, then for the second, and so on; None where that is the same
    order. x: the clients' examples, or their augmented visits.
    rows: int64, which of them, all local steps' one behind the other. y, owners, shares, real: per row, its target, its
    member, 1 / b_i in float64, whether it counts; real is None where every row counts. steps: (members at work, rows of
    each) per local step.
    """

    members: Int64s
    place: Tensor | None
    x: Tensor
    rows: Tensor
    y: Tensor
    owners: Tensor
    shares: Tensor
    real: Tensor | None
    steps: tuple[tuple[int, int], ...]

    def in_given_order(self, per_member: Tensor) -> Tensor:
        """(times K, ...) by member -> by occurrence, and within it by client in the order given."""
        return per_member if self.place is None else per_member.index_select(0, self.place.to(per_member.device))

    def each_in_given_order(self, per_member: tuple[Tensor, ...] | None) -> tuple[Tensor, ...] | None:
        """The same of one tensor a member; None stays."""
        if per_member is None or self.place is None:
            return per_member
        return tuple(per_member[place] for place in self.place.tolist())


def lay_together(clients: ChunkClients, dtypes: Collection[torch.dtype], times: int = 1) -> Together:
    """Sort the clients and lay out their local steps, each client's `times` times.

    `dtypes`: those of the products' operands and results.
    """
    block = BLOCK_BYTES // min(dtype.itemsize for dtype in dtypes)
    batches = clients.batches
    longest_first = np.argsort(-batches.steps, kind="stable")
    work = _work(batches, longest_first, times, block)
    x, device = clients.x, clients.x.device
    rows = y_rows = torch.from_numpy(clients.visited_rows[work.visits]).to(device)
    if clients.augmented is not None:
        x, rows = clients.augmented, torch.from_numpy(work.visits).to(device)
    shares = torch.from_numpy(work.shares).to(device)
    in_order = times == 1 and bool((longest_first == np.arange(len(clients))).all())
    first_places = np.argsort(longest_first) * times
    return Together(
        members=np.repeat(longest_first, times),
        place=None if in_order else torch.from_numpy((first_places + np.arange(times)[:, None]).reshape(-1)),
        x=x,
        rows=rows,
        y=clients.y.index_select(0, y_rows),
        owners=torch.from_numpy(work.owners).to(device),
        shares=shares,
        real=shares > 0 if work.fills_up else None,
        steps=work.steps,
    )


@dataclass(frozen=True)
class _Work:
    """The rows of all local steps, step by step, within a step member by member.

    steps: (members at work, rows of each) per step. visits: int64, which of the clients' visits. owners: int64, which
    member. shares: float64, 1 / b_i, or 0 where the row only fills up, as it does somewhere if `fills_up`.
    """

    steps: tuple[tuple[int, int], ...]
    visits: Int64s
    owners: Int64s
    shares: np.ndarray[tuple[int], np.dtype[np.float64]]
    fills_up: bool


def _work(batches: ClientBatches, order: Int64s, times: int, block: int) -> _Work:
    """Lay out the local steps of clients in this order, most local steps first, each a member `times` times.

    `block`: every batch is filled up to a multiple of so many rows.
    """
    num_steps = batches.steps[order]
    most = int(num_steps[0])
    # (client, step): where the client's batch begins among all visits, and its length; 0 where it is finished.
    at_work = np.arange(most) < num_steps[:, None]
    cut = np.where(at_work, batches.bound_boundaries[order][:, None] + np.arange(most), 0)
    starts = np.where(at_work, batches.bounds[cut] + batches.visit_boundaries[order][:, None], 0)
    lengths = np.where(at_work, batches.bounds[cut + 1] - batches.bounds[cut], 0)
    # One cell per member at work in a local step, step by step; then one row per example of the step's longest batch.
    batch = -(-lengths.max(0) // block) * block
    active = at_work.sum(0) * times
    step = np.repeat(np.arange(most), active)
    member = np.arange(len(step)) - np.repeat(np.cumsum(active) - active, active)
    client = member // times
    start, length, width = starts[client, step], lengths[client, step], batch[step]
    place = np.arange(width.sum()) - np.repeat(np.cumsum(width) - width, width)
    shares = np.repeat(1 / length, width)
    fills_up = not np.array_equal(length, width)
    if fills_up:
        real = place < np.repeat(length, width)
        place = np.where(real, place, 0)
        shares = np.where(real, shares, 0.0)
    steps = tuple(zip(active.tolist(), batch.tolist(), strict=True))
    return _Work(steps, np.repeat(start, width) + place, np.repeat(member, width), shares, fills_up)
