"""Clipping of updates: h_i = delta_i min(1, rho / |delta_i|), the norm over the whole model; a zero update stays zero.

Adaptive: rho <- rho exp(-lr (b - quantile)), b = unweighted fraction of the cohort with |delta_i| <= rho before
clipping; rho starts at `initial`. Fixed: rho stays. There is no epsilon. State: rho, in `ServerState.levels`.

Source: Charles et al. (2021), algorithm 2; docs/algorithms.md section 1.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Discriminator, Field, NonNegativeFloat, PositiveFloat, Tag

from raysim.section import Section


class AdaptiveClip(Section):
    """initial: rho of the first round. quantile: of the norms, which rho follows. lr: the step of its logarithm."""

    initial: PositiveFloat = 1.0
    quantile: float = Field(0.8, ge=0, le=1)
    lr: NonNegativeFloat = 0.2


class FixedClip(Section):
    """fixed: rho of every round."""

    fixed: PositiveFloat


def _form(given: object) -> str:
    fixed = isinstance(given, FixedClip) or (isinstance(given, dict) and "fixed" in given)
    return FixedClip.__name__ if fixed else AdaptiveClip.__name__


ClipSection = Annotated[
    Annotated[AdaptiveClip, Tag(AdaptiveClip.__name__)] | Annotated[FixedClip, Tag(FixedClip.__name__)],
    Discriminator(_form),
]


def initial(section: ClipSection) -> float:
    """rho of the first round."""
    return section.fixed if isinstance(section, FixedClip) else section.initial


def scale(norm: float, level: float) -> float:
    """min(1, level / norm); 1 for a zero update."""
    return level / norm if norm > level else 1.0
