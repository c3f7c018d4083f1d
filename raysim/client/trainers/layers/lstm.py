"""raysim.models.lstm by hand, for one client and with a client axis.

One client: torch's own kernels, and their own backward. Written out here a local step took three times as long on a
CPU, in any size, and cards have kernels too.

A stack: all input products at once, then one batched product per time step. With a_t, i, f, g, o, c_t as there and
u_t = tanh(c_t), backwards through time from dh, dc = 0:

    dh_t = dy_t + da_(t+1) U;  dc_t = dc + dh_t o (1 - u_t^2)
    da_t = (dc_t g i (1 - i), dc_t c_(t-1) f (1 - f), dc_t i (1 - g^2), dh_t u_t o (1 - o));  dc = dc_t f

dW, dU and db are then one product, or sum, over all steps and examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.client.trainers.layers.linear import LARGE
from raysim.client.trainers.layers.parameter import Parameter
from raysim.models import lstm


class Lstm:
    """x (batch, time, features) -> (batch, time, hidden).

    Args:
        weights: of each layer, in the order of `raysim.models.lstm.WEIGHTS`.
        precision: dtype of the kernels on a card, where the weights are large.
    """

    def __init__(self, weights: Sequence[Sequence[Parameter]], precision: torch.dtype) -> None:
        self._hidden = weights[0][1].value.shape[1]
        self._parameters = [parameter for own in weights for parameter in own]
        # The same memory as the trained weights, with a gradient. By .data and not detach(), which would count changes
        # of the whole flat vector, and the layers above move their part of it before this one's backward.
        self._leaves = [[parameter.value.data.requires_grad_() for parameter in own] for own in weights]
        self._flat = [leaf for own in self._leaves for leaf in own]
        self._precision = _of_products(weights[0][1].value, precision)
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
            leaves = [*self._flat, self._x] if need_dx else self._flat
            gradients = torch.autograd.grad(self._y, leaves, dy.clone())
        self._x = self._y = None
        for parameter, gradient in zip(self._parameters, gradients, strict=False):
            parameter.accept(gradient, alpha)
        return gradients[-1] if need_dx else dy


def _of_products(weight: Tensor, precision: torch.dtype) -> torch.dtype:
    """Return the dtype of an LSTM's products: that of small weights, and of all on a CPU, where bfloat16 is the slower
    one (`LstmsInFloat32`)."""
    return precision if weight.is_cuda and weight.numel() >= LARGE else weight.dtype


class StackedLstm:
    """x (A, batch, time, features) -> (A, batch, time, hidden).

    Args:
        weights: of each layer, in the order of `raysim.models.lstm.WEIGHTS`, with a client axis.
        precision: dtype of a layer's products on a card, where its weights are large.
    """

    def __init__(self, weights: Sequence[Sequence[Parameter]], precision: torch.dtype) -> None:
        self._all = self._layers = [list(own) for own in weights]
        self._dtypes = [_of_products(own[1].value[0], precision) for own in weights]
        self._kept: list[_Kept] = []

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the last layer."""
        clients, batch = x.shape[:2]
        if clients != len(self._layers[0][0].value):
            self._layers = [[parameter.first(clients) for parameter in own] for own in self._all]
        self._kept = []
        # (A, time * batch, features): one product per client for all steps.
        rows = x.transpose(1, 2).reshape(clients, -1, x.shape[-1])
        for own, dtype in zip(self._layers, self._dtypes, strict=True):
            self._kept.append(_scan(rows, batch, *(p.value for p in own), dtype=dtype))
            rows = _by_client(self._kept[-1].states[1:])
        return rows.view(clients, -1, batch, rows.shape[-1]).transpose(1, 2).contiguous()

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """From the last layer to the first."""
        clients, batch, time = dy.shape[:3]
        dh = dy.permute(2, 0, 1, 3).contiguous()
        for index in reversed(range(len(self._layers))):
            own, kept, dtype = self._layers[index], self._kept.pop(), self._dtypes[index]
            da = _by_client(_scan_back(dh, kept, own[1].value, dtype))
            da_low = da.to(dtype)
            if index or need_dx:
                dx = torch.bmm(da_low, own[0].value.to(dtype)).to(da.dtype).view(clients, time, batch, -1)
                dh = dx.transpose(0, 1).contiguous()
            turned = da_low.transpose(1, 2)
            own[0].accept(torch.bmm(turned, kept.inputs), alpha)
            own[1].accept(torch.bmm(turned, _by_client(kept.states[:-1]).to(dtype)), alpha)
            for bias in own[2:]:
                bias.accept(da.sum(1), alpha)
        return dh.permute(1, 2, 0, 3).contiguous() if need_dx else dy


@dataclass(frozen=True)
class _Kept:
    """Of one layer: inputs (A, time * batch, features); gates i, f, g, o (time, A, batch, 4 hidden); states h and cells
    c (time + 1, A, batch, hidden), zeros first; squashed cells u (time, A, batch, hidden)."""

    inputs: Tensor
    gates: Tensor
    states: Tensor
    cells: Tensor
    squashed: Tensor


def _scan(
    rows: Tensor, batch: int, from_input: Tensor, from_state: Tensor, *biases: Tensor, dtype: torch.dtype
) -> _Kept:
    clients, hidden = len(rows), from_state.shape[2]
    inputs = rows.to(dtype)
    gradients = torch.bmm(inputs, from_input.to(dtype).transpose(1, 2)).to(rows.dtype)
    for bias in biases:
        gradients += bias.unsqueeze(1)
    gates = gradients.view(clients, -1, batch, 4 * hidden).transpose(0, 1).contiguous()
    time = len(gates)
    states, cells = (rows.new_zeros(time + 1, clients, batch, hidden) for _ in range(2))
    squashed = rows.new_empty(time, clients, batch, hidden)
    turned = from_state.to(dtype).transpose(1, 2)
    i, f, g, o = gates.chunk(4, -1)
    i_and_f = gates[..., : 2 * hidden]
    for t in range(time):
        if dtype == rows.dtype:
            gates[t].baddbmm_(states[t], turned)
        else:
            gates[t].add_(torch.bmm(states[t].to(dtype), turned))
        i_and_f[t].sigmoid_()
        g[t].tanh_()
        o[t].sigmoid_()
        torch.mul(f[t], cells[t], out=cells[t + 1]).addcmul_(i[t], g[t])
        torch.tanh(cells[t + 1], out=squashed[t])
        torch.mul(o[t], squashed[t], out=states[t + 1])
    return _Kept(inputs, gates, states, cells, squashed)


def _scan_back(dy: Tensor, kept: _Kept, from_state: Tensor, dtype: torch.dtype) -> Tensor:
    """da (time, A, batch, 4 hidden), from dy (time, A, batch, hidden)."""
    i, f, g, o = kept.gates.chunk(4, -1)
    u = kept.squashed
    # What does not depend on the steps behind is made for all steps at once; dc and dh are factors still to come.
    da = torch.empty_like(kept.gates)
    one = dy.new_ones(())
    to_i, to_f, to_g, to_o = da.chunk(4, -1)
    torch.addcmul(i, i, i, value=-1, out=to_i).mul_(g)
    torch.addcmul(f, f, f, value=-1, out=to_f).mul_(kept.cells[:-1])
    torch.addcmul(one, g, g, value=-1, out=to_g).mul_(i)
    torch.addcmul(o, o, o, value=-1, out=to_o).mul_(u)
    to_cell = torch.addcmul(one, u, u, value=-1).mul_(o)
    from_state = from_state.to(dtype)
    time = len(dy)
    by_gate = da.view(*da.shape[:-1], 4, -1)
    dh, dc = dy[time - 1], torch.zeros_like(dy[0])
    for t in reversed(range(time)):
        dc.addcmul_(dh, to_cell[t])
        by_gate[t, ..., :3, :].mul_(dc.unsqueeze(-2))
        by_gate[t, ..., 3, :].mul_(dh)
        if t:
            dc.mul_(f[t])
            if dtype == dy.dtype:
                dh = torch.baddbmm(dy[t - 1], da[t], from_state)
            else:
                dh = dy[t - 1] + torch.bmm(da[t].to(dtype), from_state)
    return da


def _by_client(steps: Tensor) -> Tensor:
    """(time, A, batch, n) -> (A, time * batch, n)."""
    return steps.transpose(0, 1).flatten(1, 2)
