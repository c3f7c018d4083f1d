"""Nodes that join are used: a run that takes whatever there is looks, now and then, whether there is more."""

from __future__ import annotations

import time

from raysim.engine.on_ray.cluster import Placement, room

GROW_S = 5.0
"""How often it looks."""


class Growth:
    """Remembers when somebody last looked."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._looked_s = time.monotonic()

    def lacking(self, num_starting: int) -> int:
        """How many more workers there could be, beside those that are starting."""
        if not self._placement.grows or time.monotonic() - self._looked_s < GROW_S:
            return 0
        self._looked_s = time.monotonic()
        return max(0, room(self._placement) - num_starting)
