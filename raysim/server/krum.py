"""Krum: the update whose M - f - 2 nearest others are nearest, by the sum of squared distances. It ignores weights.

Multi-Krum: the plain mean of the m updates with the best scores, scored once. Ties go to the lowest index in the
cohort; scores within 1e-9 of the largest are ties, because they come from rounded sums.

Source: Blanchard et al. (2017); docs/algorithms.md section 4. Needs M >= f + 3.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from raysim.section import Section
from raysim.server.updates import pairwise

TIE = 1e-9


class Krum(Section):
    """f: updates of a cohort that may be anything."""

    name: Literal["krum"] = "krum"
    f: NonNegativeInt


class MultiKrum(Section):
    """f: updates of a cohort that may be anything. m: the best so many are averaged."""

    name: Literal["multi_krum"] = "multi_krum"
    f: NonNegativeInt
    m: PositiveInt


def coefficients(section: Krum | MultiKrum, inner: Tensor) -> Tensor:
    """1 for the chosen updates, 0 for the others, from the inner products (M, M)."""
    squares = pairwise(inner)
    nearest = squares.sort(dim=1).values[:, 1 : len(squares) - section.f - 1]  # the first is the update itself
    scores = nearest.sum(dim=1)
    chosen = torch.zeros(len(scores), dtype=torch.float64)
    margin = TIE * float(scores.max())
    for _ in range(section.m if isinstance(section, MultiKrum) else 1):
        best = int(torch.nonzero(scores <= scores.min() + margin)[0])
        chosen[best] = 1.0
        scores[best] = torch.inf
    return chosen


def fewest(section: Krum | MultiKrum) -> int:
    """How many updates it takes."""
    return max(section.f + 3, section.m if isinstance(section, MultiKrum) else 0)
