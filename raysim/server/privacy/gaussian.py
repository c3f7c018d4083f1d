"""Gaussian mechanism: g = -(sum h_i + z rho xi_t)/M_e, with normals xi_t of each round.

M_e is fixed: q N under `bernoulli`, the configured size otherwise. With `noise_cohort_size` C the noise is z rho xi
M_e/C, and C is the accountant's cohort.

The adaptive clip level follows b = 1/2 + [sum (I(|delta_i| <= rho) - 1/2)]/M_e + s xi'/C, cut to [0, 1]; s is
`count_std`, 0.05 C unless given. The updates' noise is then z' = (z^-2 - (2 s)^-2)^(-1/2), so that z is that of both.

Sources: McMahan et al. (2018), "Learning differentially private recurrent language models"; Andrew et al. (2021),
"Differentially private learning with adaptive clipping"; docs/algorithms.md section 4.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from raysim.config.section import Section
from raysim.config.values import Count, NonNegative
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.server.clipping import AdaptiveClip, ClipSection
from raysim.server.privacy import central
from raysim.server.privacy.accountant import Event, Told
from raysim.server.privacy.central import CountNoise, UnitNoise
from raysim.server.privacy.mechanism import ADD_OR_REMOVE, REPLACE_ONE, Mechanism, Sampling
from raysim.server.privacy.noise import normals
from raysim.server.privacy.section import PrivacySection
from raysim.server.release import Release
from raysim.server.sums import Sums

COUNT_SHARE = 0.05
"""Default of `count_std`, over C."""


class Gaussian(PrivacySection, Section):
    """Gaussian mechanism (DP-FedAvg): independent noise in every round."""

    name: Literal["gaussian"] = "gaussian"
    noise_cohort_size: Count | None = Field(
        None,
        description=(
            "Cohort whose noise the mean has, and which the accountant takes, though fewer clients are trained: to see "
            "the accuracy of large cohorts at the cost of small ones. Absent: the cohort's."
        ),
        examples=[5000],
    )
    count_std: NonNegative | None = Field(
        None,
        description=(
            "With an adaptive clip: standard deviation of the noise of the number of clients at or below the level. "
            "Absent: 0.05 of the cohort, also with noise_multiplier = 0; 0: they have none."
        ),
        examples=[250.0],
    )


def counts_noised(section: Gaussian, clip: ClipSection | None) -> str | None:
    """Return a remark where updates are to have no noise, and an adaptive clip's counts have some; None elsewhere."""
    if section.noise_multiplier != 0 or section.count_std == 0 or not isinstance(clip, AdaptiveClip):
        return None
    said = f"{COUNT_SHARE:g} of the cohort" if section.count_std is None else f"{section.count_std:g}"
    return (
        f"noise_multiplier = 0 takes the noise from the updates, but the counts that the clip level follows have noise "
        f"of the standard deviation {said}: count_std = 0 takes it away too"
    )


def make(
    section: Gaussian, sampling: Sampling, clip: ClipSection, layout: Layout, dtype: torch.dtype, seed: int
) -> Mechanism:
    """Return the mechanism, and what its rounds tell.

    >>> from raysim.server.clipping import FixedClip
    >>> layout = Layout.of([("w", torch.zeros(2))])
    >>> for probability in (0.01, None):
    ...     sampling = Sampling(100, lambda t: 1.0, probability)
    ...     mechanism = make(Gaussian(noise_multiplier=1.0), sampling, FixedClip(fixed=1.0), layout, torch.float32, 0)
    ...     ((event, rounds),) = mechanism.events(1.0, 10)
    ...     print(rounds, event.text)
    10 PoissonSampled(0.01, Gaussian(1))
    10 SampledWithoutReplacement(100, 1, Gaussian(0.5))
    """
    z, adapts = section.noise_multiplier, isinstance(clip, AdaptiveClip)
    unit = UnitNoise(lambda t: normals(seed, layout, dtype, t), lambda t: 1.0)

    def cohort(expected: float) -> float:
        return expected if section.noise_cohort_size is None else section.noise_cohort_size

    def count_std(expected: float) -> float:
        return COUNT_SHARE * cohort(expected) if section.count_std is None else section.count_std

    if adapts and z and 2 * (s := count_std(sampling.expected(0))) <= z:
        raise ExperimentError(
            f"server.privacy: 2 count_std > noise_multiplier must hold, because counts use up a part of the noise, but "
            f"got count_std = {s:g} and noise_multiplier = {z:g}: raise count_std, or take a fixed server.clip."
        )

    def release(t: int, level: float, sums: Sums) -> Release:
        assert z is not None
        expected = sampling.expected(t)
        count = CountNoise(count_std(expected), seed) if adapts else None
        of_updates = central.remaining(z, count.std) if count else z
        scale, noised = of_updates * level, layout.num_values
        return central.released(sums, t, unit, scale, expected, cohort(expected), noised, count)

    def events(z: float, rounds: int) -> Told:
        size = cohort(sampling.expected(0))
        if sampling.probability is None:
            return ((Event(z / 2, drawn=(sampling.population, int(size))), rounds),)
        return ((Event(z, probability=size / sampling.population), rounds),)

    if sampling.probability is None:
        return Mechanism(release, events, REPLACE_ONE, renyi_only="cohorts that are drawn without replacement")
    return Mechanism(release, events, ADD_OR_REMOVE)
