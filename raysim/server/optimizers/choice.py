"""The server optimizers to choose from."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from raysim.config.own_part import OwnServerOptimizer
from raysim.config.part import Choice, Packaged
from raysim.server.optimizers import adagrad, adam, lamb, lars, momentum, normalized, sgd, yogi
from raysim.server.optimizers.optimizer import ServerOptimizer

OptimizerSection = Annotated[
    sgd.Sgd
    | momentum.Momentum
    | adagrad.Adagrad
    | adam.Adam
    | yogi.Yogi
    | lars.Lars
    | lamb.Lamb
    | normalized.Normalized
    | OwnServerOptimizer,
    Field(discriminator="name"),
    Packaged("server_optimizer", "server.optimizer"),
]

OPTIMIZERS: Choice[ServerOptimizer] = Choice(
    "server_optimizer",
    {
        sgd.Sgd: sgd.make,
        momentum.Momentum: momentum.make,
        adagrad.Adagrad: adagrad.make,
        adam.Adam: adam.make,
        yogi.Yogi: yogi.make,
        lars.Lars: lars.make,
        lamb.Lamb: lamb.make,
        normalized.Normalized: normalized.make,
    },
    records=(ServerOptimizer,),
)


def make(section: OptimizerSection) -> ServerOptimizer:
    """The pair of functions that the section means."""
    return OPTIMIZERS.make(section)
