"""Defines a mechanism of privacy: what the server knows of a round's sums, and what that costs, as pure functions.

    release   the sums with their noise, for the server's step
    events    what n rounds have told of a client, for an accountant (accounting.py)

The weight of released sums is M_e, which does not depend on who came: a client that leaves, or whose update is not
finite, is a zero in the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raysim.server.privacy.accounting import Event
from raysim.server.sums import Sums

ADD_OR_REMOVE = "add or remove all data of one client"
REPLACE_ONE = "replace one client by another"


class Sampling(NamedTuple):
    """How a round's clients are drawn.

    population: N. expected: from a round to M_e. probability: of each client, independently of the others; None: M
    clients without replacement, or otherwise. groups: that take turns, if they do.
    """

    population: int
    expected: Callable[[int], float]
    probability: float | None = None
    groups: int | None = None


class Release(NamedTuple):
    """What the server takes for a round's sums.

    sums: with noise. within: b, the fraction of clients at or below the clip level. std: of the noise, per number of
    the mean update. signal: |mean update| without noise over that of the noise; None: there is none.
    """

    sums: Sums
    within: float
    std: float
    signal: float | None


class Mechanism(NamedTuple):
    """See the module's head; gaussian.py is a short example.

    release: from the round, its clip level and its sums. events: from z and n to an event, and how often it happens.
    neighbours: the data that are compared. released: what is private. renyi_only: why, if no distribution of privacy
    losses is known for the events.
    """

    release: Callable[[int, float, Sums], Release]
    events: Callable[[float, int], tuple[Event, int]]
    neighbours: str
    released: str = "the model after every round, and the clip level"
    renyi_only: str = ""
