"""The client optimizers to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from raysim.client.optimizers import adagrad, adam, sgd
from raysim.client.optimizers.optimizer import ClientOptimizer
from raysim.config.section import Section

OptimizerSection = Annotated[
    sgd.ClientSgd | adam.ClientAdam | adam.ClientAdamW | adagrad.ClientAdagrad, Field(discriminator="name")
]

MAKERS: dict[type[Section], Callable[[Any], ClientOptimizer]] = {
    sgd.ClientSgd: sgd.make,
    adam.ClientAdam: adam.make,
    adam.ClientAdamW: adam.make,
    adagrad.ClientAdagrad: adagrad.make,
}


def make(section: OptimizerSection) -> ClientOptimizer:
    """The pair of functions that the section means."""
    return MAKERS[type(section)](section)


def gradient_decay(section: OptimizerSection) -> float:
    """The weight decay that is added to the gradient: adamw decays the weights by themselves."""
    return 0.0 if isinstance(section, adam.ClientAdamW) else section.weight_decay
