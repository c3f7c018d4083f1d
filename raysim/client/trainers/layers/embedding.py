"""nn.Embedding by hand: y = W[x]; dW gets dy added at the rows that were read, but not at `padding_idx`."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.client.trainers.layers.parameter import Parameter


class Embedding:
    """One client: x (...) integers -> (..., width).

    Args:
        weight: (vocabulary, width).
        padding_idx: a row without gradient, or None.
    """

    def __init__(self, weight: Parameter, padding_idx: int | None) -> None:
        self._weight = weight
        self._padding = padding_idx
        self._x = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """The rows of x."""
        self._x = x
        return torch.embedding(self._weight.value, x)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """Only the rows that were read are touched, where the weight is kept as it is."""
        if self._padding is not None:
            dy.masked_fill_((self._x == self._padding).unsqueeze(-1), 0)
        self._weight.decay().index_add_(0, self._x.reshape(-1), dy.reshape(-1, dy.shape[-1]), alpha=alpha)
        return dy


class StackedEmbedding:
    """K clients: x (A, ...) integers -> (A, ..., width).

    Args:
        weight: (K, vocabulary, width).
        padding_idx: a row without gradient, or None.
    """

    def __init__(self, weight: Parameter, padding_idx: int | None) -> None:
        self._all = self._weight = weight
        self._padding = padding_idx
        self._x = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """The rows of x, each from its client's own weight."""
        if len(x) != len(self._weight.value):
            self._weight = self._all.first(len(x))
        self._x = x
        rows = x.reshape(len(x), -1)
        return self._weight.value[self._clients(rows), rows].view(*x.shape, -1)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The gradient is stored: the rows of all clients are those of one table, which strided weights are not."""
        clients, vocabulary, width = self._weight.value.shape
        rows = self._x.reshape(clients, -1)
        rows = (rows + self._clients(rows) * vocabulary).view(-1)
        gradient = _embedding_backward(dy.reshape(-1, width), rows, clients * vocabulary, -1, False)
        gradient = gradient.view(clients, vocabulary, width)
        if self._padding is not None:
            gradient[:, self._padding] = 0
        self._weight.accept(gradient, alpha)
        return dy

    @staticmethod
    def _clients(rows: Tensor) -> Tensor:
        return torch.arange(len(rows), device=rows.device).unsqueeze(1)


_embedding_backward = torch.ops.aten.embedding_dense_backward.default
