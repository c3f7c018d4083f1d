"""How a recorded tensor lies that has a row of numbers for each place of a batch's texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class RowOrder(NamedTuple):
    """The leading axes of a tensor.

    lead: numbers of places along each axis of the targets, texts first. by_place: all texts of a place come together;
    else all places of a text. is_flat: one axis for all of them.
    """

    lead: tuple[int, ...]
    by_place: bool = False
    is_flat: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the leading axes."""
        shape = self.lead[::-1] if self.by_place else self.lead
        return (math.prod(shape),) if self.is_flat else shape

    @property
    def axes(self) -> int:
        """How many of them there are."""
        return len(self.shape)

    def fits(self, shape: Sequence[int]) -> bool:
        """Whether a tensor of this shape may lie so."""
        return tuple(shape[: self.axes]) == self.shape

    def numbers(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The other axes of a tensor of this shape."""
        return tuple(shape[self.axes :])

    def viewed(self, shape: Sequence[int], other: Sequence[int]) -> RowOrder | None:
        """How a view lies of another shape; None where it has other rows than these."""
        for is_flat in (self.is_flat, not self.is_flat):
            order = self._replace(is_flat=is_flat)
            if order.fits(other) and order.numbers(other) == self.numbers(shape):
                return order
        return None

    def turned(self, one: int, other: int) -> RowOrder | None:
        """How rows lie after two axes were exchanged; None where these are not those of texts and places."""
        if self.is_flat or len(self.lead) != 2 or {one, other} != {0, 1}:
            return None
        return self._replace(by_place=not self.by_place)
