"""Banded matrix factorisation: the noise of a round takes back a part of that of the rounds before it.

c_0 = 1, c_j = c_{j-1} (2 j - 1)/(2 j) for j < bands. Round t adds W_t = |c| z rho xi_t - sum_{1 <= j < bands} c_j
W_{t-j}, with normals xi_t. As bands <= groups, a client's rounds share no column of the matrix of c, whose norm |c| is
the sensitivity of each.

No state: past noise is drawn again from its address, once in a process, and then kept for the next round.

Sources: Choquette-Choo et al. (2023), "(Amplified) banded matrix factorization"; docs/algorithms.md section 4.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.models.layout import Layout
from raysim.server.clipping import ClipSection
from raysim.server.privacy import central
from raysim.server.privacy.accountant import Event, Told
from raysim.server.privacy.central import UnitNoise
from raysim.server.privacy.mechanism import ADD_OR_REMOVE, Mechanism, Sampling
from raysim.server.privacy.noise import normals
from raysim.server.privacy.section import PrivacySection


class Banded(PrivacySection, Section):
    """Banded matrix factorisation: noise that later rounds take back in part."""

    name: Literal["banded"] = "banded"
    bands: int = Field(ge=1, le=10**4, description="Rounds whose noise is correlated, at most the sampler's groups.")


def coefficients(bands: int) -> list[float]:
    """Return c_0, c_1, ...

    >>> coefficients(3)
    [1.0, 0.5, 0.375]
    """
    c = [1.0]
    for j in range(1, bands):
        c.append(c[-1] * (2 * j - 1) / (2 * j))
    return c


class _Past:
    """What a process has drawn and computed before, so that a round costs one draw: the memory of pure functions.

    next, newest: the newest noises W/|c|, and the round of the next. inverse: the first coefficients of 1/c(x).
    """

    def __init__(self) -> None:
        self.next = 0
        self.newest: list[Tensor] = []
        self.inverse: list[float] = []


def make(
    section: Banded, sampling: Sampling, clip: ClipSection, layout: Layout, dtype: torch.dtype, seed: int
) -> Mechanism:
    """Return the mechanism, and what its rounds tell."""
    c = coefficients(section.bands)
    norm, past = math.hypot(*c), _Past()

    def draw(t: int) -> Tensor:
        if t < past.next - 1:
            past.next, past.newest = 0, []
        while past.next <= t:
            drawn = normals(seed, layout, dtype, past.next).double()
            for c_j, before in zip(c[1:], past.newest, strict=False):
                drawn.sub_(before, alpha=c_j)
            past.newest = [drawn, *past.newest][: max(1, len(c) - 1)]
            past.next += 1
        return norm * past.newest[0]

    def std(t: int) -> float:
        # W_t = |c| z rho sum_s d_{t-s} xi_s, where d is the inverse of the series c.
        d = past.inverse
        for n in range(len(d), t + 1):
            d.append((n == 0) - sum(c[j] * d[n - j] for j in range(1, min(n, len(c) - 1) + 1)))
        return norm * math.hypot(*d[: t + 1])

    unit = UnitNoise(draw, std)

    def events(z: float, rounds: int) -> Told:
        assert sampling.groups is not None
        return ((Event(z, probability=sampling.probability), -(-rounds // sampling.groups)),)

    release = central.releasing(sampling, unit, section.noise_multiplier, layout.num_values)
    return Mechanism(release, events, ADD_OR_REMOVE)
