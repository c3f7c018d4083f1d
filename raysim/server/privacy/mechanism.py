"""Defines a mechanism of privacy: what the server knows of a round's sums, and what that costs, as pure functions.

    release   the sums with their noise, for the server's step
    events    what n rounds have told of a client, for an accountant (accountant.py)

The weight of released sums is M_e, which does not depend on who came: a client that leaves, or whose update is not
finite, is a zero in the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from raysim.server.encoding import Encoding
from raysim.server.privacy.accountant import Told
from raysim.server.release import Release
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


class Mechanism(NamedTuple):
    """See the module's head; gaussian.py is a short example.

    release: from the round, its clip level and its sums. events: from z to what n rounds tell.
    neighbours: the data that are compared. released: what is private. renyi_only: why, if no distribution of privacy
    losses is known for the events. encoding: what clients send, if not their updates. always: whether a round
    without clients has a step.
    """

    release: Callable[[int, float, Sums], Release]
    events: Callable[[float, int], Told]
    neighbours: str
    released: str = "the model after every round, and the clip level"
    renyi_only: str = ""
    encoding: Encoding | None = None
    always: bool = True
