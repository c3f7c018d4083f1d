"""Chunks: who is trained together. The unit of vectorisation, of scheduling and of retry.

The plan is a pure function of the cohort and its local steps; it never sees the workers, because it fixes the order of
additions and with it the bits of the result.
"""

from __future__ import annotations

import heapq
import math

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
