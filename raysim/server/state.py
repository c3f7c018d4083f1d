"""The server's whole state between rounds: one frozen record, and the checkpoint *is* it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from raysim.models.model import Weights


@dataclass(frozen=True)
class ServerState:
    """State after `round` finished rounds. Replaced, never mutated.

    weights: the model that the next round broadcasts.
    optimizer, sampler: tensors by name; what the optimizer's and the sampler's `init` made of them, stepped since.
    """

    round: int
    weights: Weights
    optimizer: Mapping[str, Tensor]
    sampler: Mapping[str, Tensor]
