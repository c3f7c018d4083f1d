"""The server optimizers to choose from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from raysim.config.section import Section
from raysim.server.optimizers import adagrad, adam, lamb, lars, momentum, normalized, own, sgd, yogi
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
    | own.Own,
    Field(discriminator="name"),
]

MAKERS: dict[type[Section], Callable[[Any], ServerOptimizer]] = {
    sgd.Sgd: sgd.make,
    momentum.Momentum: momentum.make,
    adagrad.Adagrad: adagrad.make,
    adam.Adam: adam.make,
    yogi.Yogi: yogi.make,
    lars.Lars: lars.make,
    lamb.Lamb: lamb.make,
    normalized.Normalized: normalized.make,
}


def make(section: OptimizerSection, maker: own.Maker | None = None) -> ServerOptimizer:
    """The pair of functions that the section means; `maker` makes one's own."""
    if isinstance(section, own.Own):
        assert maker is not None
        return maker(section)
    return MAKERS[type(section)](section)
