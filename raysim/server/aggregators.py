"""How updates become one: the choices of `[server.aggregator]`, and what each asks for.

mean, fednova   need sums only
krum, multi_krum, geometric_median, and the weighting "ida"
                are weighted means whose coefficients follow from the updates' inner products
median, trimmed_mean
                are taken coordinate by coordinate
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from raysim.section import Section
from raysim.server import geometric_median, ida, krum, trimmed_mean
from raysim.server.fednova import FedNova
from raysim.server.geometric_median import GeometricMedian
from raysim.server.krum import Krum, MultiKrum
from raysim.server.trimmed_mean import Median, TrimmedMean


class Mean(Section):
    """sum_i p_i h_i."""

    name: Literal["mean"] = "mean"


class Ida(Section):
    """The mean under weighting = "ida", seen as a rule."""

    name: Literal["ida"] = "ida"


Aggregator = Annotated[
    Mean | FedNova | Median | TrimmedMean | Krum | MultiKrum | GeometricMedian, Field(discriminator="name")
]

ByInnerProducts = Krum | MultiKrum | GeometricMedian | Ida
ByCoordinate = Median | TrimmedMean
Rule = ByInnerProducts | ByCoordinate
"""What needs every update, and not their sum."""


def coefficients(rule: ByInnerProducts, inner: Tensor, weights: Tensor) -> Tensor:
    """c_i of the weighted mean that the rule is, (M,), from inner products (M, M) and weights w_i."""
    if isinstance(rule, Ida):
        return ida.coefficients(inner)
    if isinstance(rule, GeometricMedian):
        return geometric_median.coefficients(rule, inner, weights)
    return krum.coefficients(rule, inner)


def ignores_weights(rule: Rule) -> bool:
    """Whether every update counts alike."""
    return not isinstance(rule, GeometricMedian)


def fewest(rule: Rule) -> int:
    """How many updates the rule is defined for."""
    if isinstance(rule, Krum | MultiKrum):
        return krum.fewest(rule)
    return trimmed_mean.fewest(rule) if isinstance(rule, TrimmedMean | Median) else 1


def refusal(rule: Rule, clients: int) -> str | None:
    """Why the rule cannot work on so many updates; None where it can."""
    if clients >= fewest(rule):
        return None
    match rule:
        case Krum() | MultiKrum() if clients < rule.f + 3:
            return f"{rule.name} needs M >= f + 3 updates, but got f = {rule.f} and a cohort of M = {clients}"
        case MultiKrum():
            return f"multi_krum averages m <= M updates, but got m = {rule.m} and a cohort of M = {clients}"
        case TrimmedMean():
            return f"trimmed_mean needs M > 2 k updates, but got k = {rule.k} and a cohort of M = {clients}"
    return f"{rule.name} needs an update, but the cohort has none"
