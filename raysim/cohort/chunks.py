"""Cuts a cohort into chunks: clients that are trained together; the unit of vectorisation, scheduling and retry.

The plan is a pure function of the cohort and its local steps; it never sees the workers, because it fixes the order of
additions and with it the bits of the result.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate, pairwise

import numpy as np

from raysim.cohort.sampler import Positions
from raysim.cohort.tree import deal

Chunk = tuple[int, ...]
"""Client positions, in the order in which their updates are added."""

WORKER_COUNTS = (1, 2, 4, 8, 16)
"""Numbers of workers for which a cut should be balanced; it must not depend on the actual number."""


def plan(cohort: Positions, local_steps: Positions, costs: Positions, chunk_size: int) -> tuple[Chunk, ...]:
    """Cut the cohort into chunks of at most `chunk_size`, most local steps first, then costliest, ties in cohort order.

    Members of a chunk then take about the same number of local steps, of about the same length. The chunks are
    `deal`t to the leaves of the tree of sums, so that every half of it costs about the same.

    >>> plan(np.array([7, 8, 9]), local_steps=np.array([1, 5, 2]), costs=np.array([1, 1, 1]), chunk_size=2)
    ((8, 9), (7,))
    """
    order = _longest_first(local_steps, costs)
    members, up_to = cohort[order].tolist(), [0, *accumulate(costs[order].tolist())]
    ends = [*range(0, len(members), chunk_size), len(members)]
    pieces = list(pairwise(ends))
    return tuple(deal([tuple(members[a:b]) for a, b in pieces], [up_to[b] - up_to[a] for a, b in pieces]))


def stacks(
    cohort: Positions, local_steps: Positions, costs: Positions, overhead: int, num_chunks: int, most: int
) -> tuple[Chunk, ...]:
    """Cut the cohort, in the order of `plan`, into chunks of about equal cost: for trainers with a client axis, where a
    chunk costs `overhead` for each local step of its longest member, beside what its members cost.

    Few clients with many local steps are a chunk, and many with few. More chunks level more workers, and cost more
    overhead: of 1, 2, 4, ... and `num_chunks` the number is taken with which none of `WORKER_COUNTS` takes much longer
    than with the number that suits it best. No chunk has more than `most` members, in as many chunks as that takes.
    Local steps and costs are positive.
    """
    if not len(cohort):
        return ()
    order = _longest_first(local_steps, costs)
    members, tops = cohort[order].tolist(), (overhead * local_steps[order]).tolist()
    up_to = [0, *accumulate(costs[order].tolist())]

    def cut(limit: int) -> list[int]:
        """Where chunks end that each take as many members as cost no more than the limit."""
        ends = [0]
        while (first := ends[-1]) < len(members):
            room = min(len(members), first + most)
            fits = bisect_right(up_to, limit - tops[first] + up_to[first], first + 2, room + 1)
            ends.append(fits - 1)
        return ends

    def evenly(number: int) -> list[int]:
        """Where so many chunks end, or fewer, of which the costliest is as cheap as can be."""
        all_of_it = range(tops[0] + up_to[-1])
        return cut(bisect_left(all_of_it, True, key=lambda limit: len(cut(limit)) - 1 <= number))

    def costs_of(ends: list[int]) -> list[int]:
        """What each chunk costs."""
        return [tops[first] + up_to[stop] - up_to[first] for first, stop in pairwise(ends)]

    def times(ends: list[int]) -> list[float]:
        each = costs_of(ends)
        return [max(max(each), sum(each) / workers) for workers in WORKER_COUNTS]

    fewest = math.ceil(len(members) / most)
    cuts = [evenly(number) for number in sorted({max(fewest, number) for number in _numbers(num_chunks)})]
    best = cuts[_suiting_all([times(ends) for ends in cuts])]
    return tuple(deal([tuple(members[first:stop]) for first, stop in pairwise(best)], costs_of(best)))


def within(planned: tuple[Chunk, ...], amounts: Mapping[int, int], most: int) -> tuple[Chunk, ...]:
    """Divide the chunks whose members' amounts are more than `most` together; a member alone may have more.

    >>> within(((8, 9, 4), (7,)), amounts={8: 3, 9: 2, 4: 1, 7: 9}, most=4)
    ((8,), (9, 4), (7,))
    """
    divided: list[Chunk] = []
    for chunk in planned:
        part, total = list[int](), 0
        for member in chunk:
            if part and total + amounts[member] > most:
                divided.append(tuple(part))
                part, total = [], 0
            part.append(member)
            total += amounts[member]
        divided.append(tuple(part))
    return tuple(divided)


def enough(work: int, call: int, most: int) -> int:
    """How many chunks of equal cost a cohort should be dealt into, where a chunk costs `call` beside its share.

    Of 1, 2, 4, ... and `most` the number with which none of `WORKER_COUNTS` takes much longer than with the number that
    suits it best.
    """
    numbers = sorted(_numbers(most))
    return numbers[
        _suiting_all(
            [[max(call + work / n, (n * call + work) / workers) for workers in WORKER_COUNTS] for n in numbers]
        )
    ]


def _numbers(most: int) -> set[int]:
    return {min(most, 1 << power) for power in range(most.bit_length() + 1)}


def _suiting_all(times: list[list[float]]) -> int:
    """Which row, of times by number of workers, is never much longer than the shortest of its column."""
    soonest = [min(column) for column in zip(*times, strict=True)]
    worst = [max(own / least for own, least in zip(row, soonest, strict=True)) for row in times]
    return worst.index(min(worst))


def _longest_first(local_steps: Positions, costs: Positions) -> Positions:
    return np.lexsort((-costs, -local_steps))


def level(cohort: Positions, costs: Positions, num_chunks: int) -> tuple[Chunk, ...]:
    """Deal the cohort into chunks of about equal cost, so that workers stay level: for trainers without a client axis.

    Costliest first, each to the cheapest chunk that has room, ties in order; no chunk has more members than the cohort
    spread evenly would give it, rounded up. The chunks are `deal`t to the leaves of the tree of sums.
    """
    if not len(cohort):
        return ()
    room = math.ceil(len(cohort) / num_chunks)
    chunks: list[list[int]] = [[] for _ in range(min(num_chunks, len(cohort)))]
    totals = [0] * len(chunks)
    cheapest = [(0, index) for index in range(len(chunks))]
    for place in np.argsort(-costs, kind="stable").tolist():
        cost, index = heapq.heappop(cheapest)
        chunks[index].append(int(cohort[place]))
        totals[index] = cost + int(costs[place])
        if len(chunks[index]) < room:
            heapq.heappush(cheapest, (totals[index], index))
    return tuple(deal([tuple(chunk) for chunk in chunks], totals))
