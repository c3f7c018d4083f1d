"""Assigns a client's examples to local steps (docs/algorithms.md section 0, "local batches").

Each epoch is a fresh permutation, addressed by (seed, round, client, epoch), and cut into slices of B. A short last
slice is kept: E epochs are E * ceil(n / B) local steps. With `local_steps = K` epochs repeat and are cut after exactly
K steps. `RoundWork.steps` returns their number. `fill_last_batch` and `drop_last` change how an epoch ends
(`RoundWork.epoch`).

A *visit* is one use of an example by a local step: two epochs of n examples are 2 n visits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raysim import seeds
from raysim.arrays import Int64s
from raysim.client.section import ClientSection
from raysim.client.work import RoundWork
from raysim.errors import ExperimentError

MOST_ORDERED = 2**26
"""Visits whose order is drawn in one call: each takes some 64 bytes meanwhile."""


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
    """Batches of k clients, concatenated in client order.

    order: (visits,), as in `Batches`. bounds: (sum of steps + k,), as there: each client's begin with 0. steps: (k,),
    local steps, tau.
    """

    order: Int64s
    bounds: Int64s
    steps: Int64s

    @classmethod
    def of(cls, each: Sequence[Batches]) -> ClientBatches:
        """Return the batches of several clients, concatenated."""
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
        return cls(owner_and_place(sizes)[1], bounds, np.ones_like(sizes))

    @cached_property
    def visits(self) -> Int64s:
        """(k,), the number of visits of each client."""
        return self.bounds[self.bound_boundaries[1:] - 1]

    @cached_property
    def visit_boundaries(self) -> Int64s:
        """(k + 1,), where each client's visits begin in `order`, and where the last client's end."""
        return boundaries(self.visits)

    @cached_property
    def bound_boundaries(self) -> Int64s:
        """(k + 1,), where each client's bounds begin, and where the last one's end."""
        return boundaries(self.steps + 1)

    def part(self, start: int, stop: int) -> ClientBatches:
        """Return the batches of these clients."""
        (v0, v1), (b0, b1) = (
            self.visit_boundaries[[start, stop]].tolist(),
            self.bound_boundaries[[start, stop]].tolist(),
        )
        return ClientBatches(self.order[v0:v1], self.bounds[b0:b1], self.steps[start:stop])

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Batches]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Batches:
        at = range(len(self))[index]
        one = self.part(at, at + 1)
        return Batches(one.order, tuple(one.bounds.tolist()))


def boundaries(lengths: Int64s) -> Int64s:
    """Return where each of some concatenated pieces of these lengths begins, and where the last one ends.

    >>> boundaries(np.array([3, 1])).tolist()
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
    """Return the batches of clients (positions, with their n >= 1 examples).

    A client's batches do not depend on the other clients in the call.

    Raises:
        ExperimentError: there are more than MOST_ORDERED visits.
    """
    sizes, positions, work = np.asarray(sizes), np.asarray(clients), section.work_at(round_index)
    steps = work.steps(sizes, seed, round_index, positions)
    batch, steps_an_epoch, visits_an_epoch = work.epoch(sizes)
    _check_count(ordered(work, sizes, steps), round_index)
    epochs = _epochs(steps, steps_an_epoch)
    orders = _orders(section, sizes, epochs, batch, seed, round_index, positions)
    owner, step = owner_and_place(steps + 1)
    epoch, step_of_epoch = step // steps_an_epoch[owner], step % steps_an_epoch[owner]
    bounds: Int64s = epoch * visits_an_epoch[owner] + step_of_epoch * batch[owner]
    visits: Int64s = bounds[boundaries(steps + 1)[1:] - 1]
    # Equal totals alone do not suffice: what one epoch fills up and what another is cut by may cancel.
    if np.array_equal(visits_an_epoch, sizes) and np.array_equal(visits, sizes * epochs):
        return ClientBatches(orders, bounds, steps)
    owner, visit = owner_and_place(visits)
    epoch, place = visit // visits_an_epoch[owner], visit % visits_an_epoch[owner]
    order = orders[boundaries(sizes * epochs)[owner] + epoch * sizes[owner] + np.minimum(place, sizes[owner] - 1)]
    fills = place >= sizes[owner]
    if fills.any():
        filled, size = owner[fills], sizes[owner[fills]]
        starts = seeds.keys(seed, "fill", round_index, positions[filled], epoch[fills])
        order[fills] = (seeds.draws(starts, place[fills] - size) % size.astype(np.uint64)).astype(np.int64)
    return ClientBatches(order, bounds, steps)


def ordered(work: RoundWork, sizes: Int64s, steps: Int64s) -> Int64s:
    """Return the visits whose order is drawn of clients of these sizes, for so many local steps of each."""
    epochs = _epochs(steps, work.epoch(sizes)[1])
    visits: Int64s = np.maximum(sizes * epochs, work.examples(sizes, steps))
    return visits


def _epochs(steps: Int64s, steps_an_epoch: Int64s) -> Int64s:
    """Return the epochs that are begun: of the last one, perhaps only the beginning counts."""
    epochs: Int64s = -(-steps // steps_an_epoch)
    return epochs


def check_each(section: ClientSection, sizes: Int64s, rounds: int) -> None:
    """Check that no client of these sizes (at least one) has more visits in any round than can be ordered at once.

    Raises:
        ExperimentError: one has, where the most work is drawn; names the first round of this work.
    """
    changes = [change.round for change in section.schedule if change.round < rounds]
    for round_index in sorted({0, *changes}):
        work = section.work_at(round_index)
        _check_count(ordered(work, sizes, work.most(sizes)).max(keepdims=True), round_index)


def _check_count(visits: Int64s, round_index: int) -> None:
    total = int(visits.sum(dtype=np.float64))
    if total > MOST_ORDERED:
        whose = "a client processes" if len(visits) == 1 else f"{len(visits):,} clients of a chunk process"
        chunk = "" if len(visits) == 1 else ", or a smaller engine.chunk_size"
        raise ExperimentError(
            f"client.epochs, local_steps and batch_size: {whose} {total:,} examples in round {round_index}, repeated "
            f"ones repeatedly, and must not process more than {MOST_ORDERED:,}: take less local work and more "
            f"rounds{chunk}."
        )


def _orders(
    section: ClientSection,
    sizes: Int64s,
    epochs: Int64s,
    batch: Int64s,
    seed: int,
    round_index: int,
    positions: Int64s,
) -> Int64s:
    """Return the order of the examples in every epoch of every client, (sum of sizes * epochs,), concatenated."""
    owner, epoch = owner_and_place(epochs)
    lengths = sizes[owner]
    _, orders = owner_and_place(lengths)
    # A full batch is the same set in any order: the stored one saves the gather.
    shuffled = (batch < sizes)[owner] & section.shuffle
    keys = seeds.keys(seed, "batches", round_index, positions[owner[shuffled]], epoch[shuffled])
    orders[np.repeat(shuffled, lengths)] = seeds.permutations(keys, lengths[shuffled])
    return orders


def owner_and_place(lengths: Int64s) -> tuple[Int64s, Int64s]:
    """Return, for each entry of concatenated pieces of these lengths, the index of its piece and its place there.

    >>> [part.tolist() for part in owner_and_place(np.array([2, 3]))]
    [[0, 0, 1, 1, 1], [0, 1, 0, 1, 2]]
    """
    owner = np.repeat(np.arange(len(lengths)), lengths)
    return owner, np.arange(len(owner)) - boundaries(lengths)[owner]


def whole(num_examples: int) -> Batches:
    """Return one local step on all examples, in stored order."""
    return Batches(np.arange(num_examples), (0, num_examples))
