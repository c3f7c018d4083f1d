"""Which colours the values of an objective have in a picture: light is good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raysim.report.palette import HEAT, SERIES, readable_on
from tuning.objective import Objective

BEST = SERIES[1]
"""What marks the best; it is no colour of the map."""


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
            return cls(HEAT, min(middle, max(values) - 0.05), max(values))
        return cls(f"{HEAT}_r", min(values), max(middle, 1.05 * min(values) + 1e-9))

    def ink(self, value: float) -> str:
        """What can be read on a value's colour."""
        import matplotlib

        red, green, blue, _ = matplotlib.colormaps[self.name]((value - self.low) / (self.high - self.low))
        return readable_on(red, green, blue)
