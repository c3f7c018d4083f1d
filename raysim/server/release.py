"""Defines what the server learns of a round where it does not learn the exact sums: privacy, secure sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from raysim.server.sums import Sums


class Release(NamedTuple):
    """What the server takes for a round's sums.

    sums: with noise. within: b, the fraction of clients at or below the clip level; None: the exact one. figures:
    metrics of the release.
    """

    sums: Sums
    within: float | None
    figures: Mapping[str, float | None]


class Releasing(NamedTuple):
    """release: from the round, its clip level and its sums. always: whether a round without clients has a step."""

    release: Callable[[int, float, Sums], Release]
    always: bool = False
