"""What a worker does to an update before it is added up: zeroing, then clipping, at the levels of the broadcast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.server import clipping, zeroing


class Judged(NamedTuple):
    """What becomes of an update: it enters the mean as `scale` delta; the bits steer the levels of the next round."""

    scale: float = 1.0
    within_clip: bool = True
    within_zeroing: bool = True


UNTOUCHED = Judged()
"""The judgement where neither clipping nor zeroing is on."""


@dataclass(frozen=True)
class Limits:
    """Levels of a round: rho of clipping, C of zeroing; infinity where there is none."""

    clip: float = math.inf
    zeroing: float = math.inf

    def judge(self, delta: Tensor, norm: float) -> Judged:
        """Judge a client's update with |delta| = norm."""
        if self.zeroing < math.inf:
            largest = float(torch.linalg.vector_norm(delta, math.inf))
            if largest > zeroing.threshold(self.zeroing):
                return Judged(0.0, within_zeroing=False)
            return Judged(clipping.scale(norm, self.clip), norm <= self.clip, largest <= self.zeroing)
        return Judged(clipping.scale(norm, self.clip), norm <= self.clip)


UNLIMITED = Limits()
"""Neither clipping nor zeroing."""
