"""Chunks: who is trained together. The unit of vectorisation, of scheduling and of retry.

The plan is a pure function of the cohort and its local steps; it never sees the workers, because it fixes the order of
additions and with it the bits of the result.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise

import numpy as np

from raysim.cohort.sampler import Positions
from raysim.fold import deal

Chunk = tuple[int, ...]
"""Client positions, in the order in which their updates are added."""


def plan(cohort: Positions, local_steps: Positions, chunk_size: int) -> tuple[Chunk, ...]:
    """Cut the cohort into chunks of at most `chunk_size`, most local steps first, ties in cohort order.

    Members of a chunk then take about the same number of local steps. The chunks, longest first, are `deal`t to the
    leaves of the tree of sums, so that every half of it costs about the same.
    """
    order = np.argsort(-local_steps, kind="stable")
    longest_first = cohort[order].tolist()
    return tuple(deal([tuple(longest_first[i : i + chunk_size]) for i in range(0, len(longest_first), chunk_size)]))


def stacks(
    cohort: Positions, local_steps: Positions, costs: Positions, calls: int, num_chunks: int, most: int
) -> tuple[Chunk, ...]:
    """Cut the cohort, most local steps first, into chunks that cost about the same: for forms with a client axis, under
    which a chunk costs `calls` for each local step of its longest member, beside what its members cost.

    Few clients with many local steps are a chunk, and many with few. There are `num_chunks` at most, and no more than
    leave the first one members that cost as much as its calls: what more of them would gain by going to other workers,
    they would lose to calls. No chunk has more than `most` members, in as many chunks as that takes.
    """
    if not len(cohort):
        return ()
    order = np.argsort(-local_steps, kind="stable")
    members, tops = cohort[order].tolist(), (calls * local_steps[order]).tolist()
    up_to = [0, *accumulate(costs[order].tolist())]

    def cut(limit: int) -> list[int]:
        """Where chunks end that each take as many members as cost no more than the limit."""
        ends = [0]
        while (first := ends[-1]) < len(members):
            room = min(len(members), first + most)
            fits = bisect_right(up_to, limit - tops[first] + up_to[first], first + 2, room + 1)
            ends.append(fits - 1)
        return ends

    wanted = max(math.ceil(len(members) / most), min(num_chunks, len(cut(2 * tops[0])) - 1))
    limit = bisect_left(range(tops[0] + up_to[-1]), True, key=lambda limit: len(cut(limit)) - 1 <= wanted)
    return tuple(deal([tuple(members[first:stop]) for first, stop in pairwise(cut(limit))]))


def level(cohort: Positions, costs: Positions, num_chunks: int) -> tuple[Chunk, ...]:
    """Deal the cohort into chunks of about equal cost, so that workers stay level: for forms without a client axis.

    Costliest first, each to the cheapest chunk that has room, ties in order; no chunk has more members than the cohort
    spread evenly would give it, rounded up.
    """
    if not len(cohort):
        return ()
    room = math.ceil(len(cohort) / num_chunks)
    chunks: list[list[int]] = [[] for _ in range(min(num_chunks, len(cohort)))]
    cheapest = [(0, index) for index in range(len(chunks))]
    for place in np.argsort(-costs, kind="stable").tolist():
        cost, index = heapq.heappop(cheapest)
        chunks[index].append(int(cohort[place]))
        if len(chunks[index]) < room:
            heapq.heappush(cheapest, (cost + int(costs[place]), index))
    return tuple(tuple(chunk) for chunk in chunks)
