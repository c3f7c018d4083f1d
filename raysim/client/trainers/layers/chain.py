"""Layers made of others, for one client or a stack: one behind the other, with a sum around them, with tied ends."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from raysim.client.trainers.layers.layer import Layer


class Chain:
    """Args: layers: in order. lowest: index of the first with parameters; len(layers) where none has."""

    def __init__(self, layers: Sequence[Layer], lowest: int) -> None:
        self.inner = layers
        self._lowest = lowest

    def forward(self, x: Tensor) -> Tensor:
        """Every layer's output is the next one's input."""
        for layer in self.inner:
            x = layer.forward(x)
        return x

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """From the last layer to the first, or to the lowest with parameters where no dx is needed."""
        for i in reversed(range(0 if need_dx else self._lowest, len(self.inner))):
            dy = self.inner[i].backward(dy, alpha, need_dx or i > self._lowest)
        return dy


class Residual:
    """models/layers.py's: y = x + f(x); dx = dy + what f makes of dy.

    Nothing in a body overwrites the body's own input.
    """

    def __init__(self, body: Chain) -> None:
        self.inner: Sequence[Layer] = (body,)
        self._body = body

    def forward(self, x: Tensor) -> Tensor:
        """Fresh memory: the body may keep its output, and x is somebody else's."""
        return x + self._body.forward(x)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The body gets a copy, because it may overwrite what it is given."""
        if not need_dx:
            return self._body.backward(dy, alpha, False)
        return dy.add_(self._body.backward(dy.clone(), alpha, True))


class Tied:
    """models/layers.py's: the matrix gets its gradient first from the scores, then from the words.

    Args: words: its parameter is `Parameter.again` of that of `scores`, whose backward comes first.
    """

    def __init__(self, words: Layer, body: Chain, scores: Layer) -> None:
        self.inner: Sequence[Layer] = (words, body, scores)

    def forward(self, x: Tensor) -> Tensor:
        """(..., time) integers -> (..., time, vocabulary)."""
        for layer in self.inner:
            x = layer.forward(x)
        return x

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The words' end reads no weight, so that it may be moved before."""
        for layer in reversed(self.inner):
            dy = layer.backward(dy, alpha, True)
        return dy
