"""Clients that leave in mid-round: each of the cohort with the same probability, addressed by (seed, round, client).

Who leaves sends nothing: it is in no sum, and remembers nothing of the round.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from raysim import seeds
from raysim.seeds import Int64s


def stays(probability: float, seed: int, round_index: int, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Whether each client stays to the end; `probability` is that of leaving."""
    if not probability:
        return np.ones(len(positions), dtype=np.bool_)
    draws = seeds.keys(seed, "departure", round_index, positions) >> np.uint64(11)
    return np.asarray(draws.astype(np.float64) * 2.0**-53 >= probability)
