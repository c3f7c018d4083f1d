"""What a cohort receives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from raysim.models.model import Weights
from raysim.server.limits import UNLIMITED, Limits
from raysim.server.manifest import Place


@dataclass(frozen=True)
class Broadcast:
    """The model and all that a phase of a round needs beside it.

    round: number of finished rounds. phase: which of the algorithm's. lr: of the clients in this round. limits: levels
    of clipping and zeroing. repeats: by position, how often clients were drawn that were drawn more than once.
    beside: a correction's vectors (P,). places: by position, where the clients' own states lie. left_out: positions
    that an earlier phase of the round rejected. measures: the updates are only looked at, so clients' states are read
    and not written.
    """

    round: int
    weights: Weights
    lr: float
    limits: Limits = UNLIMITED
    repeats: Mapping[int, int] = field(default_factory=dict)
    phase: int = 0
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    places: Mapping[int, Place] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    measures: bool = False
