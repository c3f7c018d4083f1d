"""Trimmed mean and median per coordinate: drop the k lowest and the k highest values, average what is left.

The median drops all but the middle value, or the middle two where M is even. Both ignore weights.

Source: Yin et al. (2018), definitions 1 and 2; docs/algorithms.md section 4. Needs M > 2 k.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt

from raysim.section import Section


class TrimmedMean(Section):
    """k: values that are dropped at either end."""

    name: Literal["trimmed_mean"] = "trimmed_mean"
    k: NonNegativeInt


class Median(Section):
    """No parameters."""

    name: Literal["median"] = "median"


def dropped(section: TrimmedMean | Median, clients: int) -> int:
    """k for so many clients."""
    return section.k if isinstance(section, TrimmedMean) else (clients - 1) // 2


def fewest(section: TrimmedMean | Median) -> int:
    """How many updates it takes."""
    return 2 * section.k + 1 if isinstance(section, TrimmedMean) else 1
