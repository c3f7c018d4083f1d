"""Defines a weighting of one's own: a client's weight as a function of what is known of its training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator

from raysim.config.own_part import OwnPart, OwnWeighting
from raysim.config.part import Choice, Packaged
from raysim.config.plain import shown
from raysim.config.user_call import is_misfit
from raysim.config.values import Constant
from raysim.errors import ExperimentError, within

LEAST, MOST = 1e-100, 1e100
"""Of a sum of weights that is not 0: its products with updates, and their squares, are not numbers beyond."""


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


def check_sum(total: float, index: int) -> None:
    """Refuse a round whose weights have a sum with which no mean can be computed: it would be wrong, or not finite.

    Raises:
        ExperimentError: the sum is not 0, and too small or too large.
    """
    if total and not LEAST <= abs(total) <= MOST:
        raise ExperimentError(
            f"In round {index} the sum of the clients' weights is {total:.3g}, and 1e-100 <= sum <= 1e+100 must hold, "
            f"or all products with updates would be 0 or infinite. Only the weights' ratios count: let what weighs "
            f"(weighting=, server.weighting, a rule's coefficients) return {'larger' if abs(total) < 1 else 'smaller'} "
            f"numbers."
        )


def weight(weighting: Weighting, facts: ClientFacts) -> float:
    """Return the client's weight.

    Raises:
        ExperimentError: the function takes other arguments, or returned something else.

    >>> weight(lambda facts: facts.examples * facts.loss**0.5, ClientFacts("a", 3, 1.0, 4.0, 1))
    6.0
    """
    try:
        returned: Any = weighting(facts)
    except TypeError as error:
        if is_misfit(error):
            raise ExperimentError(
                f"weighting= is called with one argument, a client's facts, which does not fit: {within(error)}."
            ) from error
        raise
    number = float(returned) if isinstance(returned, Real) else math.nan
    if not 0 <= number < math.inf:
        raise ExperimentError(
            f"weighting= must return a finite number >= 0, but returned {shown(returned)} for {facts}."
        )
    return number
