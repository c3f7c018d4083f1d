"""Krum: the update whose M - f - 2 nearest others are nearest, by the sum of squared distances. It ignores weights.

Multi-Krum: the plain mean of the m updates with the best scores, scored once. Ties go to the lowest index in the
cohort; scores within 1e-9 of the largest are ties, because they come from rounded sums.

Source: Blanchard et al. (2017); docs/algorithms.md section 4. Needs M >= f + 3.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Count, Whole
from raysim.server.aggregators.rule import Coefficients
from raysim.server.aggregators.updates import pairwise

TIE = 1e-9


class Krum(Section):
    """Krum."""

    name: Literal["krum"] = "krum"
    f: Whole = Field(description="Updates of a cohort that may be arbitrary.")


class MultiKrum(Section):
    """Multi-Krum."""

    name: Literal["multi_krum"] = "multi_krum"
    f: Whole = Field(description="Updates of a cohort that may be arbitrary.")
    m: Count = Field(description="Number of best updates that are averaged.")


def coefficients(section: Krum | MultiKrum, inner: Tensor, weights: Tensor) -> Tensor:
    """1 for the chosen updates, 0 for the others, from the inner products (M, M); `weights` are ignored.

    >>> h = torch.tensor([0.0, 1.0, 3.0, 50.0], dtype=torch.float64)
    >>> inner = h.outer(h)  # the nearest other of 0 is 1 away, that of 1 as well: the first
    >>> coefficients(Krum(f=1), inner, torch.ones(4)).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
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


def make(section: Krum | MultiKrum) -> Coefficients:
    """Coefficients of 0 and 1."""
    averaged = section.m if isinstance(section, MultiKrum) else 0

    def needs(clients: int) -> str:
        if clients < section.f + 3:
            return f"{section.name} needs M >= f + 3 updates, but got f = {section.f} and a cohort of M = {clients}"
        return f"{section.name} averages m <= M updates, but got m = {averaged} and a cohort of M = {clients}"

    fewest = max(section.f + 3, averaged)
    return Coefficients(partial(coefficients, section), section.name, fewest, needs, ignores_weights=True)
