"""Decides which runs share segments. The decision is pure; it depends on no clock."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise

Group = tuple[int, ...]


def group_runs(keys: Sequence[tuple[int, Hashable | None]], workers: int) -> list[Group]:
    """Group runs with equal keys; divide the groups if there would be fewer groups than workers.

    Args:
        keys: number and key of each run, in order; a run with the key None forms its own group.
        workers: number of groups to carry out at a time.
    """
    sets: dict[Hashable, list[int]] = {}
    for number, key in keys:
        sets.setdefault(("alone", number) if key is None else ("lockstep", key), []).append(number)
    pieces = math.ceil(max(1, workers) / max(1, len(sets)))
    return [piece for runs in sets.values() for piece in _cut(runs, min(pieces, len(runs)))]


def _cut(numbers: Sequence[int], pieces: int) -> list[Group]:
    """Cut into consecutive pieces of about equal length."""
    bounds = [round(i * len(numbers) / pieces) for i in range(pieces + 1)]
    return [tuple(numbers[a:b]) for a, b in pairwise(bounds)]
