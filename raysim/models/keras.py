"""Draws initial weights as Keras does, for models whose papers used it; torch's differ much.

A kernel is a matrix of weights; its fans are its inputs and its outputs. Biases are zero unless stated otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from raysim.models.lstm import Lstm

TRUNCATED_STD = 0.87962566103423978
"""Standard deviation of a standard normal number truncated at 2."""


def embedding(module: nn.Embedding) -> nn.Embedding:
    """Draw weights uniformly on [-0.05, 0.05]."""
    nn.init.uniform_(module.weight, -0.05, 0.05)
    return module


def dense(module: nn.Linear, normal: bool = False) -> nn.Linear:
    """Draw weights of variance 2 / (fan in + fan out), Glorot and Bengio (2010): uniform, or truncated normal."""
    nn.init.zeros_(module.bias)
    if normal:
        truncated_normal(module.weight, math.sqrt(2 / sum(module.weight.shape)))
    else:
        nn.init.xavier_uniform_(module.weight)
    return module


@torch.no_grad()
def lstm(module: Lstm) -> Lstm:
    """Draw input weights with variance 2 / features (He et al. 2015), orthogonal state weights; forget bias 1."""
    for names in module.names:
        from_input, from_state, *biases = (module.get_parameter(name) for name in names)
        truncated_normal(from_input, math.sqrt(2 / from_input.shape[1]))
        nn.init.orthogonal_(from_state)
        for bias in biases:
            bias.zero_()
        biases[0][module.hidden : 2 * module.hidden] = 1.0
    return module


def truncated_normal(kernel: Tensor, std: float) -> None:
    """Draw normal numbers truncated at two deviations, with standard deviation `std` after the truncation."""
    wide = std / TRUNCATED_STD
    nn.init.trunc_normal_(kernel, 0.0, wide, -2 * wide, 2 * wide)
