"""Decay of the server learning rate, a factor on it after t finished rounds:

exponential   decay^t
step          factor^floor(t / every)
cosine        final + (1 - final) (1 + cos(pi min(t, length) / length)) / 2

It multiplies what scaling and warm-up give. The factor is 1 at t = 0 in all three.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from raysim.section import Section

Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(gt=0, le=1)]


class Exponential(Section):
    """decay: multiplies the learning rate after every round."""

    name: Literal["exponential"] = "exponential"
    decay: Decay


class Step(Section):
    """factor: multiplies the learning rate. every: after so many rounds."""

    name: Literal["step"] = "step"
    factor: Decay
    every: PositiveInt


class Cosine(Section):
    """From 1 down along half a cosine.

    length: rounds that it takes; it does not change where a run is carried on.
    final: what the learning rate is multiplied by from then on.
    """

    name: Literal["cosine"] = "cosine"
    length: PositiveInt
    final: Share = 0.0


Schedule = Annotated[Exponential | Step | Cosine, Field(discriminator="name")]


def factor(section: Schedule | None, t: int) -> float:
    """The factor after t finished rounds; 1 without a schedule."""
    match section:
        case None:
            return 1.0
        case Exponential():
            return section.decay**t
        case Step():
            return section.factor ** (t // section.every)
        case Cosine():
            wave = (1 + math.cos(math.pi * min(t, section.length) / section.length)) / 2
            return section.final + (1 - section.final) * wave
