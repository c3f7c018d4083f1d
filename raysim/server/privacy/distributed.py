"""Distributed privacy: clients add discrete noise to integers, whose sum modulo 2^bits is all that the server learns.

A client clips, rotates (R, one a round), divides by gamma = `granularity`, rounds each number up or down at random
without bias, anew until the norm is at most B(rho/gamma), and adds discrete Gaussians of sigma = z rho/(gamma sqrt M).
The server: sum modulo 2^bits, centred, times gamma, rotated back, / M. An update that is not finite is 0.

Default gamma = 8 sqrt(rho^2 M^2/D + z^2 rho^2)/sqrt(4^bits - 16 M), by which few numbers wrap; D is the rotated length.
A round is the better of xi-zCDP (xi = tau D, s^2/2) and (s + sqrt(D) tau)^2/2-zCDP, s = gamma B/(z rho); there is no
amplification by sampling. Metric `secure_sum/wrapped`: numbers whose true sum is outside.

Source: Kairouz, Liu and Steinke (2021), "The distributed discrete Gaussian mechanism for federated learning with secure
aggregation"; docs/algorithms.md section 4.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim import seeds
from raysim.compression.rotation import rotated, rotated_back, rotated_length
from raysim.config.section import Section
from raysim.config.values import Positive
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.server.clipping import ClipSection, initial
from raysim.server.encoding import WRAPPED, Encoding, SentUpdate, centred, wrapped
from raysim.server.privacy.accountant import Event, Told
from raysim.server.privacy.discrete import discrete_gaussian, divergence_of_sum, rounded, rounded_norm
from raysim.server.privacy.mechanism import Mechanism, Sampling
from raysim.server.privacy.section import PrivacySection
from raysim.server.release import Release
from raysim.server.sums import Sums

_MOST = 2.0**52
"""Of the numbers that a client sends: larger whole numbers are not exact in float64, and noise beyond 2^63 is none."""

_DEVIATIONS = 16
"""Of its noise, beyond which none is drawn."""


class Distributed(PrivacySection, Section):
    """Distributed discrete Gaussian: noise of all clients together, under a secure sum."""

    name: Literal["distributed"] = "distributed"
    bits: int = Field(16, ge=2, le=48, description="Bits of a number: sums are taken modulo 2^bits.")
    granularity: Positive | None = Field(
        None,
        description="gamma, by which updates are divided before they are rounded. Absent: so that few numbers wrap.",
        examples=[1e-4],
    )


def default_granularity(bits: int, clients: float, dimension: int, level: float, z: float) -> float:
    """Return gamma.

    Raises:
        ExperimentError: the field is too small for so many clients.

    >>> default_granularity(bits=3, clients=3, dimension=16, level=2.0, z=0.0)  # 8 (rho M / sqrt D) / sqrt(64 - 48)
    3.0
    """
    room = 4.0**bits - 16 * clients
    if room <= 0:
        raise ExperimentError(
            f"server.privacy.bits: 4^bits > 16 M must hold, of M clients in a round, but got bits = {bits} and M = "
            f"{clients:g}: take more bits."
        )
    return 8 * math.sqrt(level**2 * clients**2 / dimension + z**2 * level**2) / math.sqrt(room)


def make(
    section: Distributed, sampling: Sampling, clip: ClipSection, layout: Layout, dtype: torch.dtype, seed: int
) -> Mechanism:
    """Return the mechanism, and what its rounds tell."""
    clients, clip_level, numbers = sampling.expected(0), initial(clip), layout.num_values
    length = rotated_length(numbers)

    def gamma(multiplier: float) -> float:
        # Here, and not when first used: a field that is too small is refused before the run.
        usual = default_granularity(section.bits, clients, length, clip_level, multiplier)
        return usual if section.granularity is None else section.granularity

    z = section.noise_multiplier or 0.0
    unit = gamma(z)
    sigma = z * clip_level / (unit * math.sqrt(clients))
    if section.granularity is not None and clip_level / unit + _DEVIATIONS * sigma > _MOST:
        raise ExperimentError(
            f"server.privacy.granularity = {unit:g} makes numbers above 2^52 of updates of norm {clip_level:g} with "
            f"their noise: take a larger one, or leave it out."
        )

    def turn(round_index: int) -> int:
        return seeds.key(seed, "privacy/rotation", round_index)

    def encode(sent: SentUpdate) -> Tensor:
        rng = seeds.generator(seeds.key(seed, "privacy/discrete", sent.round, sent.position))
        turned = rotated(torch.cat(layout.pieces(sent.vector)), turn(sent.round)) / unit
        integers = rounded(rng, turned.numpy(), rounded_norm(clip_level / unit, length))
        if z:
            integers = integers + discrete_gaussian(rng, sigma, length)
        return torch.from_numpy(integers)

    def decode(t: int, total: Tensor) -> Tensor:
        flat = rotated_back(centred(total, section.bits) * unit, turn(t), total.new_empty(numbers))
        whole, ends = total.new_zeros(layout.size), 0
        for piece in layout.pieces(whole):
            piece.copy_(flat[ends : ends + len(piece)])
            ends += len(piece)
        return whole

    def release(t: int, level: float, sums: Sums) -> Release:
        figures = {"noise_std": z * level / clients, WRAPPED: 0}
        if not len(sums.encoded):
            return Release(replace(sums, weight=clients, normaliser=clients), None, figures)
        figures[WRAPPED] = wrapped(sums.encoded, section.bits)
        return Release(replace(sums, delta=decode(t, sums.encoded), weight=clients, normaliser=clients), None, figures)

    def events(multiplier: float, rounds: int) -> Told:
        step, std = gamma(multiplier), multiplier * clip_level
        sensitivity = step * rounded_norm(clip_level / step, length) / std
        divergence = divergence_of_sum(std / (step * math.sqrt(clients)), int(clients))
        approximate = Event(zcdp=(sensitivity**2 / 2, divergence * length))
        pure = Event(zcdp=((sensitivity + math.sqrt(length) * divergence) ** 2 / 2, 0.0))
        return (approximate, rounds), (pure, rounds)

    return Mechanism(
        release,
        events,
        "one update made 0",
        released="the sum of the clients' messages in every round, and the model",
        renyi_only="discrete noise",
        encoding=Encoding(length, length, encode, decode, section.bits, always=True),
    )
