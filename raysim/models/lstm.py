"""Defines an LSTM as a layer of a sequence: (batch, time, features) -> (batch, time, hidden), from a zero state."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
"""Parameters of a layer in the order of torch's kernels; in a module `_l0`, `_l1`, ... follow."""


class Lstm(nn.Module):
    """Layer by layer, with gates i, f, g, o in this order along the rows of W (4 hidden, features) and U (4 hidden,
    hidden):

        a_t = W x_t + b + U h_(t-1) + b';  c_t = s(f) c_(t-1) + s(i) tanh(g);  h_t = s(o) tanh(c_t)

    with s(z) = 1 / (1 + e^-z). Initial weights and names of parameters are those of nn.LSTM. Departures from it: the
    final state is dropped, and a layer may have one bias, as in Keras; torch has two, which learn alike.

    Args:
        features, hidden, layers: widths and depth.
        biases: 2 as in torch, 1 leaves out b', 0 leaves out both.
    """

    def __init__(self, features: int, hidden: int, layers: int, biases: Literal[0, 1, 2] = 2) -> None:
        super().__init__()
        self.hidden, self.layers, self.biases = hidden, layers, biases
        bound = hidden**-0.5
        for layer in range(layers):
            shapes = [(4 * hidden, hidden if layer else features), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
            for name, shape in zip(WEIGHTS[: 2 + biases], shapes, strict=False):
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape).uniform_(-bound, bound)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the last layer."""
        return run(x, [[self.get_parameter(name) for name in names] for names in self.names], self.hidden)

    @property
    def names(self) -> list[list[str]]:
        """Names of each layer's parameters, in the order of `WEIGHTS`."""
        return [[f"{name}_l{layer}" for name in WEIGHTS[: 2 + self.biases]] for layer in range(self.layers)]


def run(x: Tensor, weights: list[list[Tensor]], hidden: int) -> Tensor:
    """Run torch's LSTM over the weights of each layer, `WEIGHTS` without absent biases.

    Args:
        x: (batch, time, features).
    """
    biased = len(weights[0]) > 2
    if len(weights[0]) == 3:
        none = x.new_zeros(4 * hidden)
        weights = [[*layer, none] for layer in weights]
    state = x.new_zeros(len(weights), x.shape[0], hidden)
    flat = [weight for layer in weights for weight in layer]
    # On a card cuDNN keeps what the backward needs only if it is told that the call is for training.
    train = x.is_cuda and torch.is_grad_enabled()
    outputs: Tensor = torch.lstm(x, [state, state], flat, biased, len(weights), 0.0, train, False, True)[0]
    return outputs
