"""Zeroing of wild updates, before clipping: delta_i <- 0 where max |delta_i| > 2 C + 1. Off unless asked for.

C follows the `quantile` of the clients' largest coordinates: C <- C exp(-lr (b - quantile)), b = unweighted fraction of
the cohort with max |delta_i| <= C; it starts at `initial`. A zeroed client keeps its weight, and counts as within the
clip level. State: C, in `ServerState.levels`.

Source: the released code of Charles et al. (2021), with its constants; docs/algorithms.md section 1.
"""

from __future__ import annotations

import math

from pydantic import Field, NonNegativeFloat, PositiveFloat

from raysim.section import Section


class Zeroing(Section):
    """initial: C of the first round. quantile: of the largest coordinates, which C follows. lr: the step of its
    logarithm.
    """

    initial: PositiveFloat = 10.0
    quantile: float = Field(0.98, ge=0, le=1)
    lr: NonNegativeFloat = math.log(10)


def threshold(level: float) -> float:
    """The largest coordinate that is let through."""
    return 2 * level + 1
