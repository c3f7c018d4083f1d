"""Tree aggregation (DP-FTRL): the noise of the sum of all rounds so far is that of a few nodes of a binary tree.

After round t it is N_t = z rho times the sum of the normals of the nodes (level, index) that cover rounds 0 to t, one
for each bit of t + 1 that is 1: node (l, i) covers rounds i 2^l to (i + 1) 2^l - 1. Round t adds N_t - N_{t-1}.

n rounds tell what Gaussian(z/s_n) tells: s_n^2 = max_r sum over the nodes used of (#{its rounds = r mod groups})^2,
since a client is in one group. No state: past normals are drawn again from (level, index).

Source: Kairouz et al. (2021), "Practical and private (deep) learning without sampling or shuffling"; docs/algorithms.md
section 4. Departure: no variance reduction (Honaker's estimate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
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

TreeNode = tuple[int, int]


class Tree(PrivacySection, Section):
    """Tree aggregation (DP-FTRL): noise of prefix sums, from the nodes of a binary tree."""

    name: Literal["tree"] = "tree"


def nodes(rounds: int) -> frozenset[TreeNode]:
    """Return the nodes (level, index) that cover so many rounds.

    >>> sorted(nodes(6))  # rounds 4 and 5; rounds 0 to 3
    [(1, 2), (2, 0)]
    """
    return frozenset((level, (rounds >> level) - 1) for level in range(rounds.bit_length()) if rounds >> level & 1)


def squared_sensitivity(rounds: int, groups: int) -> int:
    """Return s_n^2.

    >>> [squared_sensitivity(n, groups=4) for n in (1, 2, 4, 8)]
    [1, 2, 3, 9]
    """
    total = np.zeros(groups, np.int64)
    for n in range(1, rounds + 1):
        # Of all rounds, the n-th is the first to use one node: the largest that ends there.
        total += np.bincount(np.arange(n - (n & -n), n) % groups, minlength=groups) ** 2
    return int(total.max())


def make(
    section: Tree, sampling: Sampling, clip: ClipSection, layout: Layout, dtype: torch.dtype, seed: int
) -> Mechanism:
    """Return the mechanism, and what its rounds tell."""

    def signed(t: int) -> Iterator[tuple[float, TreeNode]]:
        now, before = nodes(t + 1), nodes(t)
        yield from ((1.0, node) for node in sorted(now - before))
        yield from ((-1.0, node) for node in sorted(before - now))

    def draw(t: int) -> Tensor:
        drawn = [sign * normals(seed, layout, dtype, *node) for sign, node in signed(t)]
        return torch.stack(drawn).sum(0)

    unit = UnitNoise(draw, lambda t: math.sqrt(sum(1 for _ in signed(t))))

    def events(z: float, rounds: int) -> Told:
        assert sampling.groups is not None
        return ((Event(z / math.sqrt(squared_sensitivity(rounds, sampling.groups))), 1),)

    release = central.releasing(sampling, unit, section.noise_multiplier, layout.num_values)
    return Mechanism(release, events, ADD_OR_REMOVE)
