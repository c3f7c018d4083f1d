"""raysim.models.lstm by hand over packed texts: by the compiled passes, over the places that count alone.

What inputs add to the gates, and the gradients of weights, are products over all places, with rows X of inputs, H of
states before each place, and dA of the gradient of what is squashed to gates:

    added = X W' + b + b';  dW = dA' X;  dU = dA' H;  db = db' = the sum of dA's rows;  dX = dA W
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysim.client.trainers.kernel.lstm import CompiledLstm
from raysim.client.trainers.layers.parameter import Parameter
from raysim.client.trainers.packing import Packing


class PackedLstm:
    """x (N, features) -> (N, hidden), rows by place as `Packing` has them; `pack` comes before each forward pass.

    Args:
        weights: of each layer, in the order of `raysim.models.lstm.WEIGHTS`.
        by: the passes.
    """

    def __init__(self, weights: Sequence[Sequence[Parameter]], by: CompiledLstm) -> None:
        self._layers, self._by = weights, by
        self._packing: Packing | None = None
        self._kept: list[tuple[Tensor, ...]] = []

    def pack(self, packing: Packing) -> None:
        """Say how the next batch is packed."""
        self._packing = packing

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the last layer."""
        assert self._packing is not None
        reaching, self._kept = self._packing.reaching, []
        for w, u, *biases in self._layers:
            added = torch.mm(x, w.value.t())
            for bias in biases:
                added += bias.value
            states, *kept = self._by.forward_packed(added, u.value, reaching)
            self._kept.append((x, states, *kept))
            x = states[reaching[0] :]
        return x

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """From the last layer to the first."""
        assert self._packing is not None
        ones = dy.new_ones(len(dy))
        for index in reversed(range(len(self._layers))):
            w, u, *biases = self._layers[index]
            x, states, *kept = self._kept.pop()
            da = self._by.backward_packed(dy, kept, u.value, self._packing.reaching)
            turned = da.t()
            if index or need_dx:
                dy = torch.mm(da, w.value)
            w.into.addmm_(turned, x, beta=w.keep, alpha=alpha)
            u.into.addmm_(turned, states[self._packing.before], beta=u.keep, alpha=alpha)
            for bias in biases:
                bias.into.addmv_(turned, ones, beta=bias.keep, alpha=alpha)
        return dy
