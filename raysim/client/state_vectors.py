"""Says which vectors a client keeps from round to round: a correction's, transforms', error feedback's, its own.

All of them together are the client's state, one row of numbers (S P,): the correction's first, then the transforms' in
their order, then what a compressor did not send, then that of a personalisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raysim.client.corrections.correction import Correction
from raysim.client.transform import Transform


class StateVectors(NamedTuple):
    """Whose vectors there are.

    correction: how many the correction keeps. transforms: by their place in the list, those that keep one. own:
    whether the client keeps one for itself. rest: whether it keeps what its compressor did not send.
    """

    correction: int
    transforms: tuple[int, ...]
    own: bool = False
    rest: bool = False

    @property
    def num(self) -> int:
        """S, the vectors of a client; 0: clients keep no state."""
        return self.correction + len(self.transforms) + self.rest + self.own


def state_vectors(
    correction: Correction, transforms: Sequence[Transform], own: bool = False, rest: bool = False
) -> StateVectors:
    """Read from the records what their clients keep; `own`, `rest`: whether a personalisation and error feedback keep a
    vector."""
    keeping = tuple(place for place, transform in enumerate(transforms) if transform.keeps_state)
    half = correction.client
    return StateVectors(0 if half.after is None else half.vectors, keeping, own, rest)
