"""The aggregators to choose from: the choices of `[server.aggregator]`.

`rule` of a section is the record of what it computes from every update (rule.py); None where their sums are enough:

mean, fednova   need sums only
krum, multi_krum, geometric_median, and the weighting "ida"
                are weighted means whose coefficients follow from the updates' inner products
median, trimmed_mean
                are taken coordinate by coordinate
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raysim.config.section import Section
from raysim.server.aggregators.fednova import FedNova
from raysim.server.aggregators.geometric_median import GeometricMedian
from raysim.server.aggregators.krum import Krum, MultiKrum
from raysim.server.aggregators.trimmed_mean import Median, TrimmedMean


class Mean(Section):
    """The weighted mean, sum_i p_i h_i."""

    name: Literal["mean"] = "mean"

    def rule(self) -> None:
        """None: sums are enough."""


Aggregator = Annotated[
    Mean | FedNova | Median | TrimmedMean | Krum | MultiKrum | GeometricMedian, Field(discriminator="name")
]
