"""A server optimizer: a pair of pure functions over flat vectors; it *descends* on the pseudo-gradient g."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

State = Mapping[str, Tensor]


class ServerOptimizer(NamedTuple):
    """`init(params) -> state`; `step(params, g, state) -> (params, state)`. Arguments are not written to.

    g = -(sum of p_i delta_i), in the dtype of params.
    """

    init: Callable[[Tensor], State]
    step: Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
