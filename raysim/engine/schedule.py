"""Which worker does which unit next: longest first within a region of one's own, then from the slowest neighbour.

Units are indexed so that neighbours are siblings in the tree of sums. Each worker therefore starts with a contiguous
region of about equal cost: it can add up what it trained and sends one sum a round. Whoever runs dry takes from the
region with most work left, at the far end. Nothing here touches the numbers, only where and when they are made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class Schedule:
    """Units not yet given out, by worker."""

    def __init__(self, costs: Sequence[float], workers: Sequence[int]) -> None:
        self._costs = costs
        self._regions: dict[int, deque[int]] = {worker: deque() for worker in workers}
        total, done = sum(costs), 0.0
        for unit, cost in enumerate(costs):
            # The unit goes where its middle lies on the line of total cost.
            share = (done + cost / 2) / total if total else unit / len(costs)
            self._regions[workers[min(len(workers) - 1, int(share * len(workers)))]].append(unit)
            done += cost

    def __len__(self) -> int:
        return sum(len(region) for region in self._regions.values())

    def take(self, worker: int) -> int | None:
        """The worker's next unit, or None when nothing is left for anyone."""
        own = self._regions.setdefault(worker, deque())
        if own:
            return own.popleft()
        fullest = max(self._regions.values(), key=lambda region: sum(self._costs[unit] for unit in region))
        return fullest.pop() if fullest else None

    def give_back(self, units: Iterable[int], lost_worker: int) -> None:
        """Units of a lost worker, finished or not, are to be done again by anyone."""
        region = self._regions.setdefault(lost_worker, deque())
        region.extend(sorted(units))
