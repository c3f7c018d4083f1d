"""Defines a weighting of one's own: a client's weight as a function of what is known of its training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator

from raysim.config.own import OwnPart, OwnWeighting
from raysim.config.part import Choice, Packaged
from raysim.config.plain import shown
from raysim.config.values import Constant
from raysim.errors import ExperimentError


class ClientFacts(NamedTuple):
    """What the server knows of a client that has trained.

    client: its id. examples: of its training split. norm: |h_i| of what it sent, before clipping by the server. loss:
    mean over the examples of all its local batches. steps: local steps taken. constants: of the section.
    """

    client: str
    examples: int
    norm: float
    loss: float
    steps: int
    constants: Mapping[str, Constant] = {}


Weighting = Callable[[ClientFacts], float]
"""From the facts of one client to its weight w_i >= 0; the mean is sum w_i h_i / sum w_i."""


def _named(given: object) -> object:
    return {"name": "own"} if given == "own" else given


WeightingSection = Annotated[
    Literal["examples", "uniform", "ida"] | OwnWeighting,
    BeforeValidator(_named),
    Packaged("weighting", "server.weighting"),
]
"""Those that are a word need no function: their weights are known before a client trains, or follow from a rule."""


def _passed(section: OwnPart) -> Weighting:
    if not callable(section.passed):
        raise ExperimentError(f"weighting= must be a function of a client's facts, but got {shown(section.passed)}.")
    weighting: Weighting = section.passed
    return weighting


WEIGHTINGS: Choice[Weighting] = Choice("weighting", {}, _passed)


def weight(weighting: Weighting, facts: ClientFacts) -> float:
    """Return the client's weight.

    Raises:
        ExperimentError: the function returned something else.

    >>> weight(lambda facts: facts.examples * facts.loss**0.5, ClientFacts("a", 3, 1.0, 4.0, 1))
    6.0
    """
    returned: Any = weighting(facts)
    number = float(returned) if isinstance(returned, Real) else math.nan
    if not 0 <= number < math.inf:
        raise ExperimentError(
            f"weighting= must return a finite number >= 0, but returned {shown(returned)} for {facts}."
        )
    return number
