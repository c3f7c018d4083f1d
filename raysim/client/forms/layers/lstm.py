"""raysim.models.lstm, one client: torch's own kernels, and their own backward.

Written out here a local step took three times as long on a CPU, in any size, and cards have kernels too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysim.client.forms.layers.linear import LARGE
from raysim.client.forms.layers.parameter import Parameter
from raysim.models import lstm


class Lstm:
    """x (batch, time, features) -> (batch, time, hidden).

    Args:
        weights: of each layer, in the order of `raysim.models.lstm.WEIGHTS`.
        precision: dtype of the kernels, where the weights are large.
    """

    def __init__(self, weights: Sequence[Sequence[Parameter]], precision: torch.dtype) -> None:
        self._hidden = weights[0][1].value.shape[1]
        self._parameters = [parameter for own in weights for parameter in own]
        # The same memory as the trained weights, with a gradient. By .data and not detach(), which would count changes
        # of the whole flat vector, and the layers above move their part of it before this one's backward.
        self._leaves = [[parameter.value.data.requires_grad_() for parameter in own] for own in weights]
        self._flat = [leaf for own in self._leaves for leaf in own]
        large = weights[0][1].value.numel() >= LARGE
        self._precision = precision if large else weights[0][1].value.dtype
        self._x: Tensor | None = None
        self._y: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the last layer."""
        # Tensors of inference mode know no autograd: the inputs are copied out of it.
        with torch.inference_mode(False), torch.enable_grad():
            self._x = x.clone().requires_grad_()
            weights = [[leaf.to(self._precision) for leaf in own] for own in self._leaves]
            self._y = lstm.run(self._x.to(self._precision), weights, self._hidden).to(self._flat[0].dtype)
        return self._y.detach()

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """Through time."""
        assert self._x is not None
        assert self._y is not None
        with torch.inference_mode(False):
            wanted = [*self._flat, self._x] if need_dx else self._flat
            made = torch.autograd.grad(self._y, wanted, dy.clone())
        self._x = self._y = None
        for parameter, gradient in zip(self._parameters, made, strict=False):
            parameter.accept(gradient, alpha)
        return made[-1] if need_dx else dy
