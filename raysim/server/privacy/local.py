"""Local privacy: every client adds noise to what it sends, h_i + z rho xi_i, which is averaged over who reports.

xi_i are normals by (seed, round, client). A client whose update is not finite reports noise alone. n rounds tell at
most n reports of a client, of which any two differ by at most 2 rho: n x Gaussian(z/2).

Source: Wang et al. (2021), section 7.1; docs/algorithms.md section 4.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from raysim.config.section import Section
from raysim.models.layout import Layout
from raysim.server.clipping import ClipSection
from raysim.server.encoding import Encoding, SentUpdate
from raysim.server.privacy.accountant import Event, Told
from raysim.server.privacy.mechanism import Mechanism, Sampling
from raysim.server.privacy.noise import normals
from raysim.server.privacy.section import PrivacySection
from raysim.server.release import Release
from raysim.server.sums import Sums


class Local(PrivacySection, Section):
    """Local privacy: noise at every client, so that the server need not be trusted."""

    name: Literal["local"] = "local"


def make(
    section: Local, sampling: Sampling, clip: ClipSection, layout: Layout, dtype: torch.dtype, seed: int
) -> Mechanism:
    """Return the mechanism, and what its rounds tell.

    >>> from raysim.server.clipping import FixedClip
    >>> layout, sampling = Layout.of([("w", torch.zeros(2))]), Sampling(100, lambda t: 5.0)
    >>> mechanism = make(Local(noise_multiplier=3.0), sampling, FixedClip(fixed=1.0), layout, torch.float32, 0)
    >>> [(event.text, rounds) for event, rounds in mechanism.events(3.0, rounds=10)]  # z / 2, once in each round
    [('Gaussian(1.5)', 10)]
    """
    z = section.noise_multiplier or 0.0

    def encode(sent: SentUpdate) -> Tensor:
        if not z:
            return sent.vector
        drawn = normals(seed, layout, dtype, sent.round, sent.position, of_client=True)
        return drawn.double().mul_(z * sent.level).add_(sent.vector)

    def release(t: int, level: float, sums: Sums) -> Release:
        std = z * level / math.sqrt(sums.weight) if sums.weight else None
        reported = sums if not len(sums.encoded) else replace(sums, delta=sums.encoded)
        return Release(reported, None, {"noise_std": std})

    def events(z: float, rounds: int) -> Told:
        return ((Event(z / 2), rounds),)

    return Mechanism(
        release,
        events,
        "any two updates of a client",
        released="every report of a client, and the model",
        encoding=Encoding(layout.size, layout.num_values, encode, lambda t, total: total, always=True),
        always=False,
    )
