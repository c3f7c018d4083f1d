"""Chunks: who is trained together. The unit of vectorisation, of scheduling and of retry.

The plan is a pure function of the cohort and its local steps; it never sees the workers, because it fixes the order of
additions and with it the bits of the result.
"""

from __future__ import annotations

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


def auto_chunk_size(num_params: int, cohort_size: int) -> int:
    """K when the experiment says "auto": enough work to hide the call, enough chunks to keep workers level.

    A table learned from measurements (docs/performance.md): tiny models share a call among many clients; a model of a
    million parameters fills a call by itself. At least sixteen chunks a round where the cohort allows it.
    """
    by_model = 32 if num_params <= 50_000 else 8 if num_params <= 500_000 else 4
    by_cohort = -(-cohort_size // 16)
    return max(1, min(by_model, by_cohort))
