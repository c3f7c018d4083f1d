"""Which colours the values of an objective have in a picture: light is good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuning.objective import Objective

BEST = "#D55E00"
"""What marks the best; it is no colour of the map."""
UNKNOWN = "#6A6A6A"


@dataclass(frozen=True)
class Colours:
    """A colour map of matplotlib, and the values at its ends."""

    name: str
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], objective: Objective) -> Colours:
        """The better half of the values has all the colours: what is far off must not make all others alike."""
        middle = float(np.median(values))
        if objective.is_maximised:
            return cls("viridis", min(middle, max(values) - 0.05), max(values))
        return cls("viridis_r", min(values), max(middle, 1.05 * min(values) + 1e-9))

    def ink(self, value: float) -> str:
        """What can be read on a value's colour."""
        place = (value - self.low) / (self.high - self.low)
        return "white" if (place if self.name == "viridis" else 1 - place) < 0.6 else "black"
