"""raysim.models.layers.CausalSelfAttention by hand.

With P = softmax(S), S = q k^T / sqrt(d) + mask and z = P v, per head: dv = P^T dz; dP = dz v^T;
dS = P (dP - sum over the row of P dP); dq = dS k / sqrt(d); dk = dS^T q / sqrt(d).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from raysim.client.trainers.layers.layer import Layer
from raysim.models.layers import causal_mask, join_heads, split_heads


class CausalSelfAttention:
    """One client, or a stack, as the four projections are; heads, examples and clients are one batch of products.

    The projections have the precision they were made with; products inside a head are small, and stay in the weights'
    own dtype.

    Args:
        heads: a divisor of the width.
        query, key, value, out: linear layers.
    """

    def __init__(self, heads: int, query: Layer, key: Layer, value: Layer, out: Layer) -> None:
        self.inner: Sequence[Layer] = (query, key, value, out)
        self._heads = heads
        self._mask = torch.empty(0, 0)
        self._q = self._k = self._v = self._shares = torch.empty(0)
        self._lead = torch.Size()

    def forward(self, x: Tensor) -> Tensor:
        """(..., time, width), in the shape of x."""
        query, key, value, out = self.inner
        self._lead = x.shape[:-2]
        q, k, v = (self._split(layer.forward(x)) for layer in (query, key, value))
        if self._mask.shape[0] != x.shape[-2] or self._mask.dtype != q.dtype:
            self._mask = causal_mask(x.shape[-2], q)
        self._q, self._k, self._v = q.div_(math.sqrt(q.shape[-1])), k, v
        self._shares = torch.softmax(torch.baddbmm(self._mask, q, k.transpose(1, 2)), -1)
        return out.forward(self._join(torch.bmm(self._shares, v)))

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """dx is the sum of what the three projections give."""
        query, key, value, out = self.inner
        dz = self._split(out.backward(dy, alpha, True))
        shares = self._shares
        dv = torch.bmm(shares.transpose(1, 2), dz)
        ds = _softmax_backward(torch.bmm(dz, self._v.transpose(1, 2)), shares, -1, shares.dtype)
        dq = torch.bmm(ds, self._k).div_(math.sqrt(dz.shape[-1]))
        # q was kept divided already.
        dk = torch.bmm(ds.transpose(1, 2), self._q)
        dxs = [layer.backward(self._join(own), alpha, need_dx) for layer, own in ((query, dq), (key, dk), (value, dv))]
        return dxs[0].add_(dxs[1]).add_(dxs[2]) if need_dx else dy

    def _split(self, x: Tensor) -> Tensor:
        """(..., time, width) -> (... * heads, time, width / heads), contiguous."""
        parts = split_heads(x, self._heads)
        return parts.reshape(-1, *parts.shape[-2:])

    def _join(self, x: Tensor) -> Tensor:
        """The way back."""
        return join_heads(x.view(*self._lead, self._heads, *x.shape[1:]))


_softmax_backward = torch.ops.aten._softmax_backward_data.default
