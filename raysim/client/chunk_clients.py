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

from raysim.arrays import Int64s, UInt64s
from raysim.client.batches import Batches, ClientBatches, boundaries
from raysim.client.objective import RoundAt
from raysim.client.trainer import Client


class LocalInputs(NamedTuple):
    """What the clients of a call are given for their local steps, by a correction or a personalisation.

    offsets, begins, own: `offset`, `begin` and `own` of each client (client/trainer.py), (P,) each; empty if there are
    none. received: what came beside the model. windows: of each client, as there; empty if there are none.
    """

    offsets: tuple[Tensor, ...] = ()
    begins: tuple[Tensor, ...] = ()
    received: Mapping[str, Tensor] = MappingProxyType({})
    windows: tuple[tuple[tuple[int, int], ...], ...] = ()
    own: tuple[Tensor, ...] = ()

    @classmethod
    def of(cls, clients: Sequence[Client]) -> LocalInputs:
        """Return what these clients have been given."""
        return cls(
            tuple(client.offset for client in clients if client.offset is not None),
            tuple(client.begin for client in clients if client.begin is not None),
            clients[0].received,
            tuple(client.windows for client in clients),
            tuple(client.own for client in clients if client.own is not None),
        )

    def each(self, change: Callable[[Tensor], Tensor]) -> LocalInputs:
        """Return the same with the changed offsets and begins of the clients."""
        return self._replace(offsets=tuple(map(change, self.offsets)), begins=tuple(map(change, self.begins)))

    def rows(self, order: Sequence[int]) -> LocalInputs:
        """Return the inputs of the clients in this order, in which a client may occur several times."""
        return self._replace(
            offsets=tuple(self.offsets[index] for index in order if self.offsets),
            begins=tuple(self.begins[index] for index in order if self.begins),
            windows=tuple(self.windows[index] for index in order if self.windows),
            own=tuple(self.own[index] for index in order if self.own),
        )


NO_INPUTS = LocalInputs()


@dataclass(frozen=True, eq=False)
class ChunkClients(Sequence[Client]):
    """k clients in their order.

    positions, num_examples: (k,). x, y: their examples, concatenated. batches: the examples of each local step. keys:
    (k,), for draws inside the module. augmented: the examples of all visits, concatenated, where these are not rows of
    `x`. at: for an objective. inputs: what the clients are given for their local steps.
    """

    positions: Int64s
    num_examples: Int64s
    x: Tensor
    y: Tensor
    batches: ClientBatches
    keys: UInt64s
    augmented: Tensor | None = None
    at: RoundAt | None = None
    inputs: LocalInputs = NO_INPUTS

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
            inputs=LocalInputs.of(clients),
        )

    @classmethod
    def none(cls) -> ChunkClients:
        """Return no clients."""
        nothing, batches = np.zeros(0, np.int64), ClientBatches.of([])
        return cls(nothing, nothing, torch.zeros(0), torch.zeros(0), batches, np.zeros(0, np.uint64))

    def with_each(self, change: Callable[[Client], Client]) -> ChunkClients:
        """Return the clients with the inputs that `change` gives to each; data, batches and keys stay as they are."""
        return replace(self, inputs=LocalInputs.of([change(client) for client in self]))

    def receiving(self, vectors: Mapping[str, Tensor]) -> ChunkClients:
        """Return the clients with the vectors that came beside the model."""
        return replace(self, inputs=self.inputs._replace(received=vectors))

    @cached_property
    def row_boundaries(self) -> Int64s:
        """(k + 1,), where each client's examples begin in `x`, and where the last client's end."""
        return boundaries(self.num_examples)

    def visited_inputs(self) -> Tensor:
        """Return x of all local steps in their order, concatenated in client order, a row for each visit."""
        return self.x.index_select(0, self._rows()) if self.augmented is None else self.augmented

    def visited_targets(self) -> Tensor:
        """Return y of the same."""
        return self.y.index_select(0, self._rows())

    @cached_property
    def visited_rows(self) -> Int64s:
        """(visits,), which row of `x` and `y` each visit is of."""
        return self.batches.order + np.repeat(self.row_boundaries[:-1], self.batches.visits)

    def _rows(self) -> Tensor:
        return torch.from_numpy(self.visited_rows).to(self.x.device)

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
        return self._client(range(len(self))[index])

    def _client(self, at: int) -> Client:
        first, stop, first_visit, last_visit, first_bound, last_bound = self._places[at]
        inputs, batches = self.inputs, self.batches
        return Client(
            position=int(self.positions[at]),
            num_examples=int(self.num_examples[at]),
            x=self.x[first:stop],
            y=self.y[first:stop],
            batches=Batches(
                batches.order[first_visit:last_visit], tuple(batches.bounds[first_bound:last_bound].tolist())
            ),
            key=int(self.keys[at]),
            augmented=None if self.augmented is None else self.augmented[first_visit:last_visit],
            offset=inputs.offsets[at] if inputs.offsets else None,
            begin=inputs.begins[at] if inputs.begins else None,
            received=inputs.received,
            at=self.at,
            own=inputs.own[at] if inputs.own else None,
            windows=inputs.windows[at] if inputs.windows else (),
        )

    @cached_property
    def _places(self) -> list[tuple[int, ...]]:
        """For each client where its examples, its visits and its bounds begin and end: arrays give single numbers
        slowly."""
        ends = self.row_boundaries, self.batches.visit_boundaries, self.batches.bound_boundaries
        return list(zip(*(part.tolist() for each in ends for part in (each[:-1], each[1:])), strict=True))

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
            inputs=self.inputs if self.inputs is NO_INPUTS else self.inputs.rows(range(start, stop)),
        )
