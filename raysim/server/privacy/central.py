"""Releases sums with noise that the server adds: g = -(sum h_i + z rho unit_t)/M_e, unit_t a mechanism's noise.

Source: McMahan et al. (2018), "Learning differentially private recurrent language models"; docs/algorithms.md,
section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from raysim import seeds
from raysim.models.vectors import squared_norm
from raysim.server.privacy.mechanism import Sampling
from raysim.server.release import Release
from raysim.server.sums import Sums


class UnitNoise(NamedTuple):
    """Noise in units of z rho. draw: the vector (P,) that a round adds. std: of each of its numbers."""

    draw: Callable[[int], Tensor]
    std: Callable[[int], float]


class CountNoise(NamedTuple):
    """Noise of the number of clients at or below the clip level: of this standard deviation, by this seed."""

    std: float
    seed: int


def released(
    sums: Sums,
    round_index: int,
    unit: UnitNoise,
    scale: float,
    expected: float,
    cohort: float,
    num_values: int,
    count: CountNoise | None = None,
) -> Release:
    """Return the release of a round.

    Args:
        sums: of the clients that came.
        round_index: addresses the noise.
        unit: the noise.
        scale: z rho.
        expected: M_e.
        cohort: C, for which the noise is meant; M_e, unless the cohort is simulated.
        num_values: numbers that have noise.
        count: noise of the clipped fraction; None: it has none.
    """
    std, delta = scale * unit.std(round_index) / cohort, sums.delta
    signal = math.sqrt(squared_norm(delta)) / expected
    if scale:
        delta = unit.draw(round_index).double().mul_(scale * expected / cohort).add_(delta)
    reports = sums.clients + len(sums.rejected)
    within = 1 / 2 + (sums.within_clip - reports / 2) / expected
    if count is not None and count.std:
        draw = seeds.generator(seeds.key(count.seed, "privacy/count", round_index)).standard_normal()
        within += count.std * draw / cohort
    noised = replace(sums, delta=delta, weight=expected, normaliser=expected)
    ratio = signal / (std * math.sqrt(num_values)) if std else None
    return Release(noised, min(1.0, max(0.0, within)), {"noise_std": std, "signal_to_noise": ratio})


def releasing(
    sampling: Sampling, unit: UnitNoise, noise_multiplier: float | None, num_values: int
) -> Callable[[int, float, Sums], Release]:
    """Return `Mechanism.release`, with the noise of a cohort of the expected size; `noise_multiplier`: z, if known."""

    def release(t: int, level: float, sums: Sums) -> Release:
        assert noise_multiplier is not None
        expected = sampling.expected(t)
        return released(sums, t, unit, noise_multiplier * level, expected, expected, num_values)

    return release


def remaining(z: float, count_std: float) -> float:
    """z' = (z^-2 - (2 s)^-2)^(-1/2): the noise of updates beside counts that are noised too, for z in all.

    Source: Andrew et al. (2021), "Differentially private learning with adaptive clipping", theorem 1.

    >>> round(remaining(3.0, 2.5), 12)
    3.75
    """
    return (z**-2 - (2 * count_std) ** -2) ** -0.5 if z else 0.0
