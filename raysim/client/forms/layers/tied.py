"""raysim.models.tied by hand: the matrix gets its gradient first from the scores, then from the words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from raysim.client.forms.layers.chain import Chain
from raysim.client.forms.layers.layer import Layer


class Tied:
    """Args: words: its parameter is `Parameter.again` of that of `scores`, whose backward comes first."""

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
