"""How the local steps of a chunk lie behind each other when its clients are trained together.

Clients are sorted by local steps, most first, so that those still at work are a prefix. A batch shorter than the
longest of its step is filled up with rows that count for nothing. Where every client is trained from several starts, it
is a member several times, one behind the other; its examples are held once.

Batches are filled up to whole blocks as well, so that every client's part of an activation is aligned whatever an
example's width: otherwise a client's bits would depend on its place (layers/parameter.py).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from raysim.client.trainer import Client
from raysim.client.trainers.layers.parameter import BLOCK_BYTES


@dataclass(frozen=True)
class Together:
    """A chunk's data in the order of its local steps; a *row* is one example in one local step.

    members: the clients, most local steps first, each `times` times. place: where the clients, in the order given,
    stand among them for the first time, then for the second, and so on; None where that is the same order. x: the
    clients' examples, or their augmented visits, one client behind the other.
    rows: int64, which of them, all local steps' one behind the other. y, owners, shares, real: per row, its target, its
    member, 1 / b_i in float64, whether it counts; real is None where every row counts. steps: (members at work, rows of
    each) per local step.
    """

    members: list[Client]
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


def lay_together(clients: Sequence[Client], dtypes: Collection[torch.dtype], times: int = 1) -> Together:
    """Sort the clients and lay out their local steps, each client's `times` times.

    `dtypes`: those of the products' operands and results.
    """
    block = BLOCK_BYTES // min(dtype.itemsize for dtype in dtypes)
    num_steps = np.array([client.batches.num_steps for client in clients])
    longest_first = np.argsort(-num_steps, kind="stable")
    members = [clients[i] for i in longest_first]
    sorted_already = bool((longest_first == np.arange(len(clients))).all())
    work = _work([m.batches.order for m in members], [m.batches.bounds for m in members], times, block)
    offsets = np.cumsum([0] + [m.num_examples for m in members[:-1]])
    y = torch.cat([m.y for m in members])
    y_rows = rows = torch.from_numpy(work.rows + offsets[work.owners // times]).to(y.device)
    if members[0].augmented is None:
        x = torch.cat([m.x for m in members])
    else:
        x = torch.cat([m.visits()[0] for m in members])
        visits = [np.arange(len(m.batches.order)) for m in members]
        first = np.cumsum([0] + [len(own) for own in visits[:-1]])
        placed = _work(visits, [m.batches.bounds for m in members], times, block)
        rows = torch.from_numpy(placed.rows + first[placed.owners // times]).to(y.device)
    shares = torch.from_numpy(work.shares).to(x.device)
    in_order = sorted_already and times == 1
    first_places = np.argsort(longest_first) * times
    return Together(
        members=[member for member in members for _ in range(times)],
        place=None if in_order else torch.from_numpy((first_places + np.arange(times)[:, None]).reshape(-1)),
        x=x,
        rows=rows,
        y=y.index_select(0, y_rows),
        owners=torch.from_numpy(work.owners).to(x.device),
        shares=shares,
        real=shares > 0 if work.fills_up else None,
        steps=work.steps,
    )


@dataclass(frozen=True)
class _Work:
    """The rows of all local steps, step by step, within a step member by member.

    steps: (members at work, rows of each) per step. rows: int64, which example of its client. owners: int64, which
    member. shares: float64, 1 / b_i, or 0 where the row only fills up, as it does somewhere if `fills_up`.
    """

    steps: tuple[tuple[int, int], ...]
    rows: np.ndarray[tuple[int], np.dtype[np.int64]]
    owners: np.ndarray[tuple[int], np.dtype[np.int64]]
    shares: np.ndarray[tuple[int], np.dtype[np.float64]]
    fills_up: bool


def _work(orders: Sequence[np.ndarray], bounds: Sequence[tuple[int, ...]], times: int, block: int) -> _Work:
    """Lay out the local steps of clients that are sorted by their number, most first, each a member `times` times.

    `block`: every batch is filled up to a multiple of so many rows.
    """
    num_steps = np.array([len(b) - 1 for b in bounds])
    num, most = len(bounds), int(num_steps[0])
    # (client, step): where the client's batch begins in the joined orders, and its length; 0 where it is finished.
    starts = np.zeros((num, most), dtype=np.int64)
    lengths = np.zeros_like(starts)
    at_work = np.arange(most) < num_steps[:, None]
    cuts = np.fromiter(chain.from_iterable(bounds), dtype=np.int64)
    first = np.cumsum([0] + [len(b) for b in bounds[:-1]])
    starts[at_work] = np.delete(cuts, first + num_steps)
    lengths[at_work] = np.delete(cuts, first) - starts[at_work]
    starts += np.cumsum([0] + [len(order) for order in orders[:-1]])[:, None]
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
    rows = np.concatenate(orders)[np.repeat(start, width) + place]
    steps = tuple(zip(active.tolist(), batch.tolist(), strict=True))
    return _Work(steps, rows, np.repeat(member, width), shares, fills_up)
