"""Lets the server learning rate decay, by a factor after t finished rounds.

exponential   decay^t
step          factor^floor(t / every)
cosine        final + (1 - final) (1 + cos(pi min(t, length) / length)) / 2

It multiplies what scaling and warm-up give. The factor is 1 at t = 0 in all three.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from raysim.config.section import Section
from raysim.config.values import Count

Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(gt=0, le=1)]


class ExponentialDecay(Section):
    """Exponential decay."""

    name: Literal["exponential"] = "exponential"
    decay: Decay = Field(description="Factor of the learning rate after every round.")


class Step(Section):
    """Decay in steps."""

    name: Literal["step"] = "step"
    factor: Decay = Field(description="Factor of the learning rate at each step.")
    every: Count = Field(description="Rounds between steps.")


class Cosine(Section):
    """From 1 down along half a cosine."""

    name: Literal["cosine"] = "cosine"
    length: Count = Field(description="Rounds of the decay; it does not change where a run is resumed.")
    final: Share = Field(0.0, description="Factor of the learning rate from then on.")


Schedule = Annotated[ExponentialDecay | Step | Cosine, Field(discriminator="name")]


def factor(section: Schedule | None, t: int) -> float:
    """The factor after t finished rounds; 1 without a schedule.

    >>> [factor(Step(factor=0.5, every=2), t) for t in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    >>> [factor(Cosine(length=2), t) for t in range(4)]
    [1.0, 0.5, 0.0, 0.0]
    """
    match section:
        case None:
            return 1.0
        case ExponentialDecay():
            return section.decay**t
        case Step():
            return section.factor ** (t // section.every)
        case Cosine():
            wave = (1 + math.cos(math.pi * min(t, section.length) / section.length)) / 2
            return section.final + (1 - section.final) * wave
