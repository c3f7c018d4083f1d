"""The client optimizers to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from raysim.client import adagrad, adam, adamw, sgd
from raysim.client.optimizer import ClientOptimizer
from raysim.section import Section

OptimizerSection = Annotated[sgd.Sgd | adam.Adam | adamw.AdamW | adagrad.Adagrad, Field(discriminator="name")]

MAKERS: dict[type[Section], Callable[[Any], ClientOptimizer]] = {
    sgd.Sgd: sgd.make,
    adam.Adam: adam.make,
    adamw.AdamW: adamw.make,
    adagrad.Adagrad: adagrad.make,
}


def make(section: OptimizerSection) -> ClientOptimizer:
    """The pair of functions that the section means."""
    return MAKERS[type(section)](section)


def gradient_decay(section: OptimizerSection) -> float:
    """The weight decay that is added to the gradient: adamw decays the weights by themselves."""
    return 0.0 if isinstance(section, adamw.AdamW) else section.weight_decay
