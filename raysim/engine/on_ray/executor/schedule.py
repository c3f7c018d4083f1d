"""Which worker does which unit next: longest first within a region of its own, then from the fullest region.

Units are indexed so that neighbours are siblings in the tree of sums. Each worker therefore starts with a contiguous
region of about equal cost: it can add up what it trained and sends one sum a round. Whoever runs dry takes from the
region with most work left, the shortest first. Nothing here touches the numbers, only where and when they are made.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from raysim.cohort.tree import middle

NO_WORKER = -1
"""The worker that had units which nobody has now."""


class Schedule:
    """Units not yet given out, by worker."""

    def __init__(self, costs: Sequence[float], workers: Sequence[int]) -> None:
        self._costs = costs
        self._lost: set[int] = set()
        self._num = len(costs)
        self._regions: dict[int, deque[int]] = {worker: deque() for worker in workers}
        if workers:
            self._split(0, len(costs), list(workers))
        else:
            # Whoever comes first.
            self._regions[NO_WORKER] = deque(range(len(costs)))
            self._lost.add(NO_WORKER)
        for worker, region in self._regions.items():
            self._regions[worker] = deque(sorted(region, key=lambda unit: -costs[unit]))

    def _split(self, start: int, stop: int, workers: Sequence[int]) -> None:
        """Give units [start, stop) to the workers: halves of the tree to halves of them, while they can be halved."""
        half = len(workers) // 2
        if len(workers) % 2 == 0 and stop - start > 1:
            self._split(start, middle(start, stop), workers[:half])
            self._split(middle(start, stop), stop, workers[half:])
            return
        total, done = sum(self._costs[start:stop]), 0.0
        for unit in range(start, stop):
            # The unit goes where its middle lies on the line of total cost.
            share = (done + self._costs[unit] / 2) / total if total else (unit - start) / (stop - start)
            self._regions[workers[min(len(workers) - 1, int(share * len(workers)))]].append(unit)
            done += self._costs[unit]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self._regions.values())

    def __len__(self) -> int:
        return self._num

    def take(self, worker: int, least: float = 0.0) -> int | None:
        """The worker's next unit, or None when there is none for it.

        A unit from another's region breaks up that worker's subtree, so that more sums travel: it is taken only where
        at least `least` of cost is left there. A lost worker's region is anyone's.
        """
        own = self._regions.setdefault(worker, deque())
        if own:
            self._num -= 1
            return own.popleft()
        others = [(self._left(number), number) for number, region in self._regions.items() if region]
        cost, fullest = max(others, default=(0.0, worker))
        if not others or (cost < least and fullest not in self._lost):
            return None
        self._num -= 1
        return self._regions[fullest].pop()

    def _left(self, worker: int) -> float:
        return math.inf if worker in self._lost else sum(self._costs[unit] for unit in self._regions[worker])

    def lose(self, worker: int, units: Iterable[int]) -> None:
        """The worker is gone: its region, and what it had been given, finished or not, is anyone's."""
        back = sorted(units)
        self._num += len(back)
        self._regions.setdefault(worker, deque()).extend(back)
        self._lost.add(worker)
