"""Assigns a client's examples to local steps (docs/algorithms.md section 0, "local batches").

Each epoch is a fresh permutation, addressed by (seed, round, client, epoch), cut into slices of B, the short last slice
kept: E epochs are E * ceil(n / B) local steps. With `local_steps = K` epochs repeat and are cut after exactly K steps.
`RoundWork.steps` returns their number. `fill_last_batch` and `drop_last` are other ends of an epoch
(`RoundWork.epoch`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from raysim import seeds
from raysim.client.section import ClientSection

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batches:
    """Local step k trains on examples `order[bounds[k]:bounds[k + 1]]` of the client."""

    order: Int64s
    bounds: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        """Local steps of the round, tau."""
        return len(self.bounds) - 1


@dataclass(frozen=True, eq=False)
class ClientBatches:
    """Batches of k clients, one client's behind the other's.

    order: (visits,), as in `Batches`. bounds: (sum of steps + k,), as there: each client's begin with 0. steps: (k,),
    local steps, tau.
    """

    order: Int64s
    bounds: Int64s
    steps: Int64s

    @classmethod
    def of(cls, each: Sequence[Batches]) -> ClientBatches:
        """Return clients' batches behind each other."""
        nothing = np.zeros(0, np.int64)
        return cls(
            np.concatenate([nothing, *(batches.order for batches in each)]),
            np.concatenate([nothing, *(np.array(batches.bounds, np.int64) for batches in each)]),
            np.array([batches.num_steps for batches in each], np.int64),
        )

    @classmethod
    def whole(cls, sizes: Int64s) -> ClientBatches:
        """Return one local step on all examples of each client, in stored order."""
        bounds = np.stack([np.zeros_like(sizes), sizes], axis=1).reshape(-1)
        return cls(_counted(sizes)[1], bounds, np.ones_like(sizes))

    @cached_property
    def visits(self) -> Int64s:
        """(k,), examples that each client meets."""
        return self.bounds[self.first_bounds[1:] - 1]

    @cached_property
    def first_visits(self) -> Int64s:
        """(k + 1,), where each client's visits begin in `order`, and where the last one's end."""
        return ends(self.visits)

    @cached_property
    def first_bounds(self) -> Int64s:
        """(k + 1,), where each client's bounds begin, and where the last one's end."""
        return ends(self.steps + 1)

    def part(self, start: int, stop: int) -> ClientBatches:
        """Return the batches of these clients."""
        (v0, v1), (b0, b1) = self.first_visits[[start, stop]].tolist(), self.first_bounds[[start, stop]].tolist()
        return ClientBatches(self.order[v0:v1], self.bounds[b0:b1], self.steps[start:stop])

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Batches]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Batches:
        one = self.part(index, index + 1)
        return Batches(one.order, tuple(one.bounds.tolist()))


def ends(lengths: Int64s) -> Int64s:
    """Return where pieces of these lengths begin that lie behind each other, and where the last one ends.

    >>> ends(np.array([3, 1])).tolist()
    [0, 3, 4]
    """
    places = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=places[1:])
    return places


def draw(
    section: ClientSection,
    sizes: Sequence[int] | Int64s,
    seed: int,
    round_index: int,
    clients: Sequence[int] | Int64s,
) -> ClientBatches:
    """Return the batches of clients (positions, with their n >= 1 examples); they are independent."""
    sizes, positions, work = np.asarray(sizes), np.asarray(clients), section.work_at(round_index)
    steps = work.steps(sizes, seed, round_index, positions)
    batch, steps_an_epoch, met = work.epoch(sizes)
    # Of the last epoch, perhaps only the beginning.
    epochs = -(-steps // steps_an_epoch)
    owner, epoch = _counted(epochs)
    lengths = sizes[owner]
    _, orders = _counted(lengths)
    # A full batch is the same set in any order: the stored one saves the gather.
    shuffled = (batch < sizes)[owner] & section.shuffle
    keys = seeds.keys(seed, "batches", round_index, positions[owner[shuffled]], epoch[shuffled])
    orders[np.repeat(shuffled, lengths)] = seeds.permutations(keys, lengths[shuffled])
    owner, step = _counted(steps + 1)
    epoch, others = step // steps_an_epoch[owner], step % steps_an_epoch[owner]
    bounds: Int64s = epoch * met[owner] + others * batch[owner]
    visits: Int64s = bounds[ends(steps + 1)[1:] - 1]
    # The visits are as many also where an earlier epoch has what the last one lacks.
    if np.array_equal(met, sizes) and np.array_equal(visits, sizes * epochs):
        return ClientBatches(orders, bounds, steps)
    owner, visit = _counted(visits)
    epoch, place = visit // met[owner], visit % met[owner]
    order = orders[ends(sizes * epochs)[owner] + epoch * sizes[owner] + np.minimum(place, sizes[owner] - 1)]
    fills = place >= sizes[owner]
    if fills.any():
        filled, size = owner[fills], sizes[owner[fills]]
        starts = seeds.keys(seed, "fill", round_index, positions[filled], epoch[fills])
        order[fills] = (seeds.draws(starts, place[fills] - size) % size.astype(np.uint64)).astype(np.int64)
    return ClientBatches(order, bounds, steps)


def _counted(lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Return, of pieces of these lengths that lie behind each other, whose each entry is, and its place there.

    >>> [part.tolist() for part in _counted(np.array([2, 3]))]
    [[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
    """
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - ends(lengths)[owner]


def whole(num_examples: int) -> Batches:
    """Return one local step on all examples, in stored order."""
    return Batches(np.arange(num_examples), (0, num_examples))
