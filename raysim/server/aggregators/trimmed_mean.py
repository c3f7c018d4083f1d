"""Trimmed mean and median per coordinate: drop the k lowest and the k highest values, average what is left.

The median drops all but the middle value, or the middle two where M is even. Both ignore weights.

Source: Yin et al. (2018), definitions 1 and 2; docs/algorithms.md section 4. Needs M > 2 k.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt

from raysim.config.section import Section
from raysim.server.aggregators.rule import ByCoordinate, Rule


class TrimmedMean(Section):
    """The coordinatewise trimmed mean."""

    name: Literal["trimmed_mean"] = "trimmed_mean"
    k: NonNegativeInt = Field(description="Values dropped at either end of each coordinate.")

    def rule(self) -> Rule:
        """k values are dropped, whatever the cohort's size."""

        def needs(clients: int) -> str:
            return f"trimmed_mean needs M > 2 k updates, but got k = {self.k} and a cohort of M = {clients}"

        return Rule(self.name, ByCoordinate(lambda clients: self.k), 2 * self.k + 1, needs)


class Median(Section):
    """The coordinatewise median; it has no keys."""

    name: Literal["median"] = "median"

    def rule(self) -> Rule:
        """All values but the middle one or two are dropped."""
        return Rule(self.name, ByCoordinate(lambda clients: (clients - 1) // 2))
