"""Layers one behind the other, as a part of a larger one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from raysim.client.forms.layers.layer import Layer


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
