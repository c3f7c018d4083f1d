"""Trimmed mean and median per coordinate: drop the k lowest and the k highest values, average what is left.

The median drops all but the middle value, or the middle two where M is even. Both ignore weights.

Source: Yin et al. (2018), definitions 1 and 2; docs/algorithms.md section 4. Needs M > 2 k.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysim.config.section import Section
from raysim.config.values import Whole
from raysim.server.aggregators.rule import Coordinatewise
from raysim.server.aggregators.updates import trim


class TrimmedMean(Section):
    """The coordinatewise trimmed mean."""

    name: Literal["trimmed_mean"] = "trimmed_mean"
    k: Whole = Field(description="Values dropped at either end of each coordinate.")


class Median(Section):
    """The coordinatewise median; it has no keys."""

    name: Literal["median"] = "median"


def make(section: TrimmedMean | Median) -> Coordinatewise:
    """The median drops all values but the middle one or two; a trimmed mean k, whatever the cohort's size.

    >>> import torch
    >>> updates, weights = torch.tensor([[9.0, 0.0], [1.0, 2.0], [2.0, 7.0], [4.0, 3.0]]), torch.ones(4)
    >>> make(Median()).fn(updates[:3], weights[:3]).tolist()
    [2.0, 2.0]
    >>> make(TrimmedMean(k=1)).fn(updates, weights).tolist()  # (2 + 4) / 2, (2 + 3) / 2
    [3.0, 2.5]
    >>> make(TrimmedMean(k=1)).refusal(2)
    'trimmed_mean needs M > 2 k updates, but got k = 1 and a cohort of M = 2'
    """
    if isinstance(section, Median):
        return Coordinatewise(
            lambda updates, weights: trim(updates, (len(updates) - 1) // 2), section.name, ignores_weights=True
        )

    def needs(clients: int) -> str:
        return f"trimmed_mean needs M > 2 k updates, but got k = {section.k} and a cohort of M = {clients}"

    return Coordinatewise(
        lambda updates, weights: trim(updates, section.k), section.name, 2 * section.k + 1, needs, ignores_weights=True
    )
