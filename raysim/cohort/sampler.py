"""A sampler: which clients make the cohort of a round. A pair of pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

State = Mapping[str, Tensor]
Positions = npt.NDArray[np.int64]


class Sampler(NamedTuple):
    """`init() -> state`; `sample(state, round) -> positions` of the cohort in the training split, in order of drawing.

    A position that is there c times was drawn c times: the client trains once and counts c times. There may be none.
    `learn(state, positions, distances) -> state`, where there is one, is told |x_new - y_i| of the round's clients.
    """

    init: Callable[[], State]
    sample: Callable[[State, int], Positions]
    learn: Callable[[State, Positions, npt.NDArray[Any]], State] | None = None
