"""Lists the aggregators: the choices of `[server.aggregator]`.

A section gives a rule over every update (rule.py), or None if their sums are enough:

mean, fednova, local_adaptivity
                need sums only
krum, multi_krum, geometric_median, and the weighting "ida"
                are weighted means whose coefficients follow from the updates' inner products
median, trimmed_mean
                are taken coordinate by coordinate
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raysim.config.own_part import OwnAggregator
from raysim.config.part import Choice, Packaged
from raysim.config.section import Section
from raysim.server.aggregators import geometric_median, krum, own_rule, trimmed_mean
from raysim.server.aggregators.fednova import FedNova
from raysim.server.aggregators.local_adaptivity import LocalAdaptivity
from raysim.server.aggregators.rule import Coefficients, Coordinatewise, Rule


class Mean(Section):
    """The weighted mean, sum_i p_i h_i."""

    name: Literal["mean"] = "mean"


Aggregator = Annotated[
    Mean
    | FedNova
    | LocalAdaptivity
    | trimmed_mean.Median
    | trimmed_mean.TrimmedMean
    | krum.Krum
    | krum.MultiKrum
    | geometric_median.GeometricMedian
    | OwnAggregator,
    Field(discriminator="name"),
    Packaged("aggregator", "server.aggregator"),
]


def _of_sums(section: Section) -> None:
    """None: sums are enough."""


AGGREGATORS: Choice[Rule | None] = Choice(
    "aggregator",
    {
        Mean: _of_sums,
        FedNova: _of_sums,
        LocalAdaptivity: _of_sums,
        trimmed_mean.Median: trimmed_mean.make,
        trimmed_mean.TrimmedMean: trimmed_mean.make,
        krum.Krum: krum.make,
        krum.MultiKrum: krum.make,
        geometric_median.GeometricMedian: geometric_median.make,
    },
    own_rule.make,
    (Coordinatewise, Coefficients),
)
