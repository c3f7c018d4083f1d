"""Clips and zeroes updates before they are added up, and lets the levels follow quantiles.

Zeroing comes first, and is off unless asked for: delta_i <- 0 where max |delta_i| > 2 C + 1. Clipping:
h_i = delta_i min(1, rho / |delta_i|), the norm over the whole model; a zero update stays zero. There is no epsilon. A
zeroed client keeps its weight, and counts as within the clip level.

A level follows a quantile of what clients report as one bit: C <- C exp(-lr (b - quantile)), b = *unweighted* fraction
of the cohort at or below C before clipping: |delta_i| <= rho, max |delta_i| <= C. It starts at `initial`; a fixed clip
level stays. State: rho and C, in `ServerState.levels`.

Sources: Charles et al. (2021), algorithm 2, and their released code for zeroing, with its constants; Andrew et al.
(2021), algorithm 1; docs/algorithms.md section 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Discriminator, Field, Tag
from torch import Tensor

from raysim.arrays import Bools, Float64s
from raysim.config.section import Section
from raysim.config.values import Positive


class AdaptiveClip(Section):
    """A clip level that follows a quantile of the update norms."""

    initial: Positive = Field(1.0, description="Clip level rho of the first round.")
    quantile: float = Field(0.8, ge=0, le=1, description="Quantile of the norms that rho follows.")
    lr: float = Field(0.2, ge=0, le=100, description="Step size of rho's logarithm.")


class FixedClip(Section):
    """A constant clip level."""

    fixed: Positive = Field(description="Clip level rho of every round.")


def _form(given: object) -> str:
    fixed = isinstance(given, FixedClip) or (isinstance(given, dict) and "fixed" in given)
    return FixedClip.__name__ if fixed else AdaptiveClip.__name__


ClipSection = Annotated[
    Annotated[AdaptiveClip, Tag(AdaptiveClip.__name__)] | Annotated[FixedClip, Tag(FixedClip.__name__)],
    Discriminator(_form),
]


class Zeroing(Section):
    """A level for zeroing that follows a quantile."""

    initial: Positive = Field(10.0, description="Level C of the first round.")
    quantile: float = Field(0.98, ge=0, le=1, description="Quantile of the largest coordinates that C follows.")
    lr: float = Field(math.log(10), ge=0, le=100, description="Step size of C's logarithm.")


def initial(section: ClipSection) -> float:
    """rho of the first round."""
    return section.fixed if isinstance(section, FixedClip) else section.initial


def scale(norms: Float64s, level: float) -> Float64s:
    """min(1, level / norm) of each; 1 for a zero update.

    >>> scale(np.array([4.0, 0.5, 0.0]), 1.0).tolist()
    [0.25, 1.0, 1.0]
    """
    return np.divide(level, norms, out=np.ones(len(norms)), where=norms > level)


def threshold(level: float) -> float:
    """The largest coordinate that is let through."""
    return 2 * level + 1


def follow(level: float, fraction_within: float, quantile: float, lr: float) -> float:
    """The level of the next round."""
    return level * math.exp(-lr * (fraction_within - quantile))


class Judged(NamedTuple):
    """What becomes of k updates: each enters the mean as `scale` delta; the bits steer the levels of the next round.

    All are (k,), scales are float64.
    """

    scale: Float64s
    within_clip: Bools
    within_zeroing: Bools

    @classmethod
    def untouched(cls, number: int) -> Judged:
        """Return the judgement of so many updates without clipping and zeroing."""
        yes = np.ones(number, np.bool_)
        return cls(np.ones(number), yes, yes)


@dataclass(frozen=True)
class Limits:
    """Levels of a round: rho of clipping, C of zeroing; infinity if it is off."""

    clip: float = math.inf
    zeroing: float = math.inf

    def judge(self, deltas: Tensor, norms: Float64s) -> Judged:
        """Judge clients' updates (k, P) with |delta_i| = norms_i."""
        if self.clip == self.zeroing == math.inf:
            return Judged.untouched(len(norms))
        scales, within_clip = scale(norms, self.clip), norms <= self.clip
        if self.zeroing == math.inf:
            return Judged(scales, within_clip, np.ones(len(norms), np.bool_))
        largest = torch.linalg.vector_norm(deltas, math.inf, dim=-1).double().numpy(force=True)
        zeroed = largest > threshold(self.zeroing)
        return Judged(np.where(zeroed, 0.0, scales), within_clip | zeroed, largest <= self.zeroing)


UNLIMITED = Limits()
"""Neither clipping nor zeroing."""
