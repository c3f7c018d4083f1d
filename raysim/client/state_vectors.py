"""Says which vectors a client keeps from round to round: a correction's, and one for each transform that keeps one.

All of them together are the client's state, one row of numbers (S P,): the correction's first, then the transforms' in
their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raysim.client.corrections.correction import Correction
from raysim.client.transform import Transform


class StateVectors(NamedTuple):
    """Whose vectors there are.

    correction: how many the correction keeps. transforms: by their place in the list, those that keep one.
    """

    correction: int
    transforms: tuple[int, ...]

    @property
    def num(self) -> int:
        """S, the vectors of a client; 0: clients keep no state."""
        return self.correction + len(self.transforms)


def state_vectors(correction: Correction, transforms: Sequence[Transform]) -> StateVectors:
    """Read from the records what their clients keep."""
    keeping = tuple(place for place, transform in enumerate(transforms) if transform.keeps_state)
    half = correction.client
    return StateVectors(0 if half.after is None else half.vectors, keeping)
