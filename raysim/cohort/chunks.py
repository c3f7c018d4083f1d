"""Chunks: who is trained together. The unit of vectorisation, of scheduling and of retry.

The plan is a pure function of the cohort and its local steps; it never sees the workers, because it fixes the order of
additions and with it the bits of the result.
"""

from __future__ import annotations

import numpy as np

from raysim.cohort.sampler import Positions

Chunk = tuple[int, ...]
"""Client positions, in the order in which their updates are added."""


def plan(cohort: Positions, local_steps: Positions, chunk_size: int) -> tuple[Chunk, ...]:
    """Cut the cohort into chunks of at most `chunk_size`, most local steps first, ties in cohort order.

    Members of a chunk then take about the same number of local steps, and chunk 0 is the longest.
    """
    order = np.argsort(-local_steps, kind="stable")
    longest_first = cohort[order].tolist()
    return tuple(tuple(longest_first[i : i + chunk_size]) for i in range(0, len(longest_first), chunk_size))
