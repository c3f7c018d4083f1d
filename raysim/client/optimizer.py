"""A client optimizer: a pair of functions over flat vectors. Clients keep no optimizer state between rounds.

`step` writes `params` and `state` in place and reads nothing else: a client's vectors are private to its local
training, and a local step is too short to allocate in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

State = dict[str, Tensor]


class ClientOptimizer(NamedTuple):
    """`init(params) -> state` of a round's start; `step(params, gradient, state, lr)` in place."""

    init: Callable[[Tensor], State]
    step: Callable[[Tensor, Tensor, State, float], None]
