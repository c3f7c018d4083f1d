"""The client optimizers to choose from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysim.client.optimizers import adagrad, adam, sgd
from raysim.client.optimizers.optimizer import ClientOptimizer
from raysim.config.own_part import OwnClientOptimizer
from raysim.config.part import Choice, Packaged

OptimizerSection = Annotated[
    sgd.ClientSgd | adam.ClientAdam | adam.ClientAdamW | adagrad.ClientAdagrad | OwnClientOptimizer,
    Field(discriminator="name"),
    Packaged("client_optimizer", "client.optimizer"),
]

OPTIMIZERS: Choice[ClientOptimizer] = Choice(
    "client_optimizer",
    {
        sgd.ClientSgd: sgd.make,
        adam.ClientAdam: adam.make,
        adam.ClientAdamW: adam.make,
        adagrad.ClientAdagrad: adagrad.make,
    },
    records=(ClientOptimizer,),
)


def make(section: OptimizerSection) -> ClientOptimizer:
    """The pair of functions that the section means."""
    return OPTIMIZERS.make(section)


def gradient_decay(section: OptimizerSection) -> float:
    """The weight decay that the training loop adds to the gradient: none where the optimizer sees to it itself."""
    return 0.0 if make(section).adds_decay else getattr(section, "weight_decay", 0.0)
