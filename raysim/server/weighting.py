"""Defines a weighting of one's own: a client's weight as a function of what is known of its training."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class ClientFacts(NamedTuple):
    """What the server knows of a client that has trained.

    client: its id. examples: of its training split. norm: |h_i| of what it sent, before clipping by the server. loss:
    mean over the examples of all its local batches. steps: local steps taken.
    """

    client: str
    examples: int
    norm: float
    loss: float
    steps: int


Weighting = Callable[[ClientFacts], float]
"""From the facts of one client to its weight w_i >= 0; the mean is sum w_i h_i / sum w_i."""
