"""A sampler: which clients make the cohort of a round. A pair of pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

State = Mapping[str, Tensor]
Positions = npt.NDArray[np.int64]


class Sampler(NamedTuple):
    """`init() -> state`; `sample(state, round) -> positions` of the cohort in the training split, in order of drawing.

    A position that is there c times was drawn c times: the client trains once and counts c times. There may be none.
    """

    init: Callable[[], State]
    sample: Callable[[State, int], Positions]
