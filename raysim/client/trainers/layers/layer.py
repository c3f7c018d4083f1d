"""The seam of the hand-written trainers: a layer with its own backward, for one client or for a stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor


class Layer(Protocol):
    """One layer of a sequence, in training mode, called forward then backward once per local step.

    For one client activations are (batch, ...); for a stack (clients, batch, ...), where `clients` may shrink from one
    local step to the next. A layer keeps what its backward needs between the two calls and nothing beyond.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output."""
        ...

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The gradient with respect to `x`; parameters take alpha times theirs (see `Parameter`).

        `dy` may be overwritten. Where `need_dx` is false nothing below has parameters, and what is returned is unused.
        """
        ...


class Addressed(Protocol):
    """A layer that draws: its draws are a function of the client's key, the local step and its place."""

    def address(self, keys: Tensor) -> None:
        """Start a round of local training; `keys` is int64, one per local step, (steps,) or (steps, K) in a stack."""
        ...


@runtime_checkable
class Composite(Protocol):
    """A layer made of others."""

    inner: Sequence[Layer]


def every(layers: Sequence[Layer]) -> Iterator[Layer]:
    """The layers and, behind each, those that it is made of."""
    for layer in layers:
        yield layer
        if isinstance(layer, Composite):
            yield from every(layer.inner)
