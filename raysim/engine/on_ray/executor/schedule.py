"""Decides which worker takes which unit next: the longest unit of its region, then units of the fullest region.

Units are indexed so that neighbours are siblings in the tree of sums. Each worker therefore starts with a contiguous
region of about equal cost: it adds up its results, and sends one sum a round. A worker whose region is empty takes the
shortest unit of the region with most work left. The schedule changes no number, only the place and time of its
computation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain

from raysim.cohort.tree import middle

NO_WORKER = -1
"""The region of units that belong to no worker."""


class Schedule:
    """Waiting units, by worker."""

    def __init__(self, costs: Sequence[float], workers: Sequence[int]) -> None:
        self._costs = costs
        self._open: set[int] = set()
        self._num = len(costs)
        self.cost = 0.0
        """The total cost of the waiting units, up to rounding."""
        self._regions: dict[int, deque[int]] = {worker: deque() for worker in workers}
        if workers:
            self._split(0, len(costs), list(workers))
        else:
            # The first worker to start takes them.
            self._regions[NO_WORKER] = deque(range(len(costs)))
            self._open.add(NO_WORKER)
        self._left: dict[int, float] = {}
        self._fullest: list[tuple[bool, float, int]] = []
        """A heap of regions and what was left in them; an entry that is no longer true is passed over."""
        for worker, region in self._regions.items():
            self._regions[worker] = deque(sorted(region, key=lambda unit: -costs[unit]))
            self._count(worker, sum(costs[unit] for unit in region))

    def _split(self, start: int, stop: int, workers: Sequence[int]) -> None:
        """Divide units [start, stop) among the workers: halves of the tree among halves of the workers, while their
        number is even."""
        half = len(workers) // 2
        if len(workers) % 2 == 0 and stop - start > 1:
            self._split(start, middle(start, stop), workers[:half])
            self._split(middle(start, stop), stop, workers[half:])
            return
        total, done = sum(self._costs[start:stop]), 0.0
        for unit in range(start, stop):
            # The unit's middle on the line of total cost decides its worker.
            share = (done + self._costs[unit] / 2) / total if total else (unit - start) / (stop - start)
            self._regions[workers[min(len(workers) - 1, int(share * len(workers)))]].append(unit)
            done += self._costs[unit]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._regions.values())

    def __len__(self) -> int:
        return self._num

    def take(self, worker: int, least: float = 0.0) -> int | None:
        """Take the worker's next unit; returns None if there is none for it.

        A unit from another worker's region breaks up that worker's subtree, and more sums travel. Therefore the worker
        takes one only if a cost of at least `least` is left in that region. Any worker may take from an open region.
        """
        region = self._regions.get(worker)
        if region:
            return self._taken(worker, region.popleft())
        fullest = self._with_most_left()
        if fullest is None or (fullest not in self._open and self._left[fullest] < least):
            return None
        return self._taken(fullest, self._regions[fullest].pop())

    def _taken(self, worker: int, unit: int) -> int:
        self._num -= 1
        # Costs may be rounded: never less than nothing is left.
        self._count(worker, max(0.0, self._left[worker] - self._costs[unit]))
        return unit

    def _count(self, worker: int, left: float) -> None:
        self.cost += left - self._left.get(worker, 0.0)
        self._left[worker] = left
        if self._regions[worker]:
            heappush(self._fullest, self._entry(worker))

    def _entry(self, worker: int) -> tuple[bool, float, int]:
        return worker not in self._open, -self._left[worker], -worker

    def _with_most_left(self) -> int | None:
        while self._fullest:
            worker = -self._fullest[0][-1]
            if self._regions[worker] and self._fullest[0] == self._entry(worker):
                return worker
            heappop(self._fullest)
        return None

    def open_region(self, worker: int, units: Iterable[int]) -> None:
        """Open the region of a worker that is lost or late to all workers; put `units`, which it had, back into it."""
        back = sorted(units)
        self._num += len(back)
        self._regions.setdefault(worker, deque()).extend(back)
        self._open.add(worker)
        self._count(worker, self._left.get(worker, 0.0) + sum(self._costs[unit] for unit in back))

    def close_region(self, worker: int) -> None:
        """Leave the region to its worker, which has started: the others take from it only if much is left."""
        if worker in self._open:
            self._open.remove(worker)
            self._count(worker, self._left[worker])
