"""Stores the clients of a chunk as columns: one array for each property, in client order; a `Client` is a row of them.

What clients cost beside their training is then a few calls of NumPy and torch for all of them, not for each one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from raysim.client.batches import ClientBatches, boundaries
from raysim.client.objective import RoundAt
from raysim.client.trainer import Client
from raysim.seeds import Int64s, UInt64s


class Corrections(NamedTuple):
    """What a correction gives to the clients of a call, whose local steps then use it.

    offsets, begins: `offset` and `begin` of each client (client/trainer.py), (P,) each; empty if it gives none. sent:
    what came beside the model. windows: of each client, as there.
    """

    offsets: tuple[Tensor, ...] = ()
    begins: tuple[Tensor, ...] = ()
    sent: Mapping[str, Tensor] = MappingProxyType({})
    windows: tuple[tuple[tuple[int, int], ...], ...] = ()

    @classmethod
    def of(cls, clients: Sequence[Client]) -> Corrections:
        """Return what these clients have been given."""
        return cls(
            tuple(client.offset for client in clients if client.offset is not None),
            tuple(client.begin for client in clients if client.begin is not None),
            clients[0].sent,
            tuple(client.windows for client in clients),
        )

    def each(self, change: Callable[[Tensor], Tensor]) -> Corrections:
        """Return the same with other vectors of the clients in the place of theirs."""
        return self._replace(offsets=tuple(map(change, self.offsets)), begins=tuple(map(change, self.begins)))

    def rows(self, order: Sequence[int]) -> Corrections:
        """Return the corrections of the clients in this order, in which a client may occur several times."""
        return self._replace(
            offsets=tuple(self.offsets[index] for index in order if self.offsets),
            begins=tuple(self.begins[index] for index in order if self.begins),
            windows=tuple(self.windows[index] for index in order if self.windows),
        )


NO_CORRECTIONS = Corrections()


@dataclass(frozen=True, eq=False)
class ChunkClients(Sequence[Client]):
    """k clients in their order.

    positions, num_examples: (k,). x, y: their examples, concatenated. batches: see there. keys: (k,), for draws inside
    the module. augmented: the examples of all visits, concatenated, where these are not rows of `x`. at: for an
    objective. changed: the same clients as rows, with what a correction gives to each; None: it gives nothing.
    """

    positions: Int64s
    num_examples: Int64s
    x: Tensor
    y: Tensor
    batches: ClientBatches
    keys: UInt64s
    augmented: Tensor | None = None
    at: RoundAt | None = None
    changed: tuple[Client, ...] | None = None

    @classmethod
    def of(cls, clients: Sequence[Client]) -> ChunkClients:
        """Return the clients as columns: themselves, or one or more rows, concatenated."""
        if isinstance(clients, ChunkClients):
            return clients
        augmented = [client.augmented for client in clients if client.augmented is not None]
        return cls(
            positions=np.array([client.position for client in clients], np.int64),
            num_examples=np.array([client.num_examples for client in clients], np.int64),
            x=torch.cat([client.x for client in clients]),
            y=torch.cat([client.y for client in clients]),
            batches=ClientBatches.of([client.batches for client in clients]),
            keys=np.array([client.key for client in clients], np.uint64),
            augmented=torch.cat(augmented) if augmented else None,
            at=clients[0].at,
            changed=tuple(clients),
        )

    @classmethod
    def none(cls) -> ChunkClients:
        """Return no clients."""
        nothing, batches = np.zeros(0, np.int64), ClientBatches.of([])
        return cls(nothing, nothing, torch.zeros(0), torch.zeros(0), batches, np.zeros(0, np.uint64))

    def with_each(self, change: Callable[[Client], Client]) -> ChunkClients:
        """Return the clients as `change` returns each, which leaves data, batches and keys as they are."""
        return replace(self, changed=tuple(change(client) for client in self))

    @property
    def corrections(self) -> Corrections:
        """What a correction has given to the clients."""
        return Corrections.of(self.changed) if self.changed else NO_CORRECTIONS

    @cached_property
    def row_boundaries(self) -> Int64s:
        """(k + 1,), where each client's examples begin in `x`, and where the last client's end."""
        return boundaries(self.num_examples)

    def visits(self) -> tuple[Tensor, Tensor]:
        """Return x and y of all local steps in their order, concatenated in client order, a row for each visit."""
        rows = torch.from_numpy(self.visited_rows).to(self.x.device)
        x = self.x.index_select(0, rows) if self.augmented is None else self.augmented
        return x, self.y.index_select(0, rows)

    @cached_property
    def visited_rows(self) -> Int64s:
        """(visits,), which row of `x` and `y` each visit is of."""
        return self.batches.order + np.repeat(self.row_boundaries[:-1], self.batches.visits)

    def __len__(self) -> int:
        return len(self.positions)

    def __iter__(self) -> Iterator[Client]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> ChunkClients: ...
    def __getitem__(self, index: int | slice) -> Client | ChunkClients:
        if isinstance(index, slice):
            return self._part(*index.indices(len(self)))
        if self.changed is not None:
            return self.changed[index]
        at = range(len(self))[index]
        one, first = self._part(at, at + 1), int(self.row_boundaries[at])
        rows = slice(first, first + int(one.num_examples[0]))
        return Client(
            position=int(one.positions[0]),
            num_examples=int(one.num_examples[0]),
            x=self.x[rows],
            y=self.y[rows],
            batches=one.batches[0],
            key=int(one.keys[0]),
            augmented=one.augmented,
            at=self.at,
        )

    def _part(self, start: int, stop: int, step: int = 1) -> ChunkClients:
        assert step == 1, "a part is contiguous"
        if (start, stop) == (0, len(self)):
            return self
        rows = slice(int(self.row_boundaries[start]), int(self.row_boundaries[stop]))
        visits = slice(*self.batches.visit_boundaries[[start, stop]].tolist())
        return ChunkClients(
            positions=self.positions[start:stop],
            num_examples=self.num_examples[start:stop],
            x=self.x[rows],
            y=self.y[rows],
            batches=self.batches.part(start, stop),
            keys=self.keys[start:stop],
            augmented=None if self.augmented is None else self.augmented[visits],
            at=self.at,
            changed=None if self.changed is None else self.changed[start:stop],
        )
