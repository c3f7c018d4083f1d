"""Lists the mechanisms of privacy, and returns the record of a section and its accountant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

import torch
from pydantic import Field

from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.server.clipping import ClipSection
from raysim.server.privacy import banded, distributed, gaussian, local, tree
from raysim.server.privacy.accountant import Accountant
from raysim.server.privacy.mechanism import Mechanism, Sampling
from raysim.server.privacy.section import PrivacySection

PrivacyChoice = Annotated[
    gaussian.Gaussian | tree.Tree | banded.Banded | local.Local | distributed.Distributed, Field(discriminator="name")
]

_MAKERS: Mapping[type[PrivacySection], Callable[..., Mechanism]] = MappingProxyType(
    {
        gaussian.Gaussian: gaussian.make,
        tree.Tree: tree.make,
        banded.Banded: banded.make,
        local.Local: local.make,
        distributed.Distributed: distributed.make,
    }
)


def make(
    section: PrivacySection, sampling: Sampling, clip: ClipSection, layout: Layout, dtype: torch.dtype, seed: int
) -> Mechanism:
    """Return the record of pure functions.

    Args:
        section: the mechanism's.
        sampling: how clients are drawn.
        clip: the clip level's section.
        layout: the groups that clients send.
        dtype: what the noise is drawn in.
        seed: addresses the noise.
    """
    return _MAKERS[type(section)](section, sampling, clip, layout, dtype, seed)


def accountant(section: PrivacySection, sampling: Sampling, mechanism: Mechanism) -> Accountant:
    """Return the accountant of a mechanism with noise."""
    delta = sampling.population**-1.1 if section.delta is None else section.delta
    if delta >= 1:
        raise ExperimentError(
            "server.privacy.delta is by default N^-1.1, of N training clients, and there is one: give delta."
        )
    usual: Any = "rdp" if mechanism.renyi_only else "pld"
    name = section.accountant or usual
    if name == "pld" and mechanism.renyi_only:
        raise ExperimentError(
            f"server.privacy.accountant = 'pld' has no distribution of privacy losses for {mechanism.renyi_only}: take "
            f"'rdp', or leave it out."
        )
    return Accountant(section.noise_multiplier, delta, name, mechanism.neighbours, mechanism.released, mechanism.events)
