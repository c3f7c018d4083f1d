"""Defines a property of devices: one number for all devices, or a distribution over them.

A draw is addressed by (seed, key, client): a device keeps its value through the run in any cohort. With
`per = "round"` it is addressed by (seed, key, round, client), and a device draws anew in every round.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from raysim import seeds
from raysim.arrays import Float64s, Int64s
from raysim.config.section import Section
from raysim.config.values import NonNegative, Positive, Spread

Per = Annotated[
    Literal["run", "round"],
    Field(description='A device keeps its draw for the "run", or draws anew in every "round".'),
]


class LogNormal(Section):
    """Log-normal: median exp(sigma z), z standard normal."""

    name: Literal["lognormal"] = "lognormal"
    median: Positive = Field(description="Median of the draws.")
    sigma: Spread = Field(description="Standard deviation of the logarithm.")
    per: Per = "run"


class UniformQuantity(Section):
    """Uniform between two bounds."""

    name: Literal["uniform"] = "uniform"
    low: NonNegative = Field(description="Smallest value.")
    high: Positive = Field(description="Largest value.")
    per: Per = "run"

    @model_validator(mode="after")
    def _in_order(self) -> UniformQuantity:
        if self.low > self.high:
            raise ValueError(f"low <= high must hold, but got (low={self.low}, high={self.high})")
        return self


class ExponentialQuantity(Section):
    """An exponential distribution."""

    name: Literal["exponential"] = "exponential"
    mean: Positive = Field(description="Mean of the draws.")
    per: Per = "run"


Distribution = Annotated[LogNormal | UniformQuantity | ExponentialQuantity, Field(discriminator="name")]


def draw_quantity(quantity: float | Distribution, seed: int, key: str, round_index: int, positions: Int64s) -> Float64s:
    """Return the quantity of each client, float64 (clients,); positive if it is drawn.

    Args:
        quantity: the experiment's value.
        seed: the experiment's.
        key: the quantity's dotted key: draws of different keys are independent.
        round_index: finished rounds.
        positions: of the clients.
    """
    if isinstance(quantity, int | float):
        return np.full(len(positions), float(quantity))
    # One address for both, so that a draw of a round never equals the run's draw.
    when = -1 if quantity.per == "run" else round_index
    uniform = seeds.uniforms(seeds.keys(seed, key, when, positions))
    match quantity:
        case LogNormal():
            from scipy.special import ndtri  # slow to import, in every process of a run

            return np.asarray(quantity.median * np.exp(quantity.sigma * ndtri(uniform)))
        case UniformQuantity():
            return quantity.low + (quantity.high - quantity.low) * uniform
        case ExponentialQuantity():
            return -quantity.mean * np.log(uniform)
