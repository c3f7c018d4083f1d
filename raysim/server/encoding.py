"""Defines an encoding: what clients send in place of their weighted updates, so that the server learns a sum only.

    message = encode(sent)              a client's, float64 (length,); integers, if they are to be added modulo 2^bits
    total   = sum of messages           what the server gets
    sum     = decode(round, total)      of w_i h_i, (P,)

Messages are added as they are, and the server takes the sum modulo 2^bits: the same number, and one sees what wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

WRAPPED = "secure_sum/wrapped"
"""Metric: numbers whose true sum has no place in the field."""


class SentUpdate(NamedTuple):
    """What a client encodes. vector: h_i, float64 (P,). weight: w_i. round, position: address draws. level: rho."""

    vector: Tensor
    weight: float
    round: int
    position: int
    level: float


class Encoding(NamedTuple):
    """See the module's head; secure_sum.py is a short example.

    length: of a message, gaps included. num_values: its numbers. bits: of each of these, as they are billed; None: as
    the model's. always: whether a client whose update is not finite sends the message of zeros.
    """

    length: int
    num_values: int
    encode: Callable[[SentUpdate], Tensor]
    decode: Callable[[int, Tensor], Tensor]
    bits: int | None = None
    always: bool = False


def centred(total: Tensor, bits: int) -> Tensor:
    """Return the integers modulo 2^bits, from -2^(bits-1) to 2^(bits-1) - 1.

    >>> centred(torch.tensor([3.0, 9.0, -8.0, -9.0], dtype=torch.float64), bits=4).tolist()
    [3.0, -7.0, -8.0, 7.0]
    """
    half = 2.0 ** (bits - 1)
    return torch.remainder(total + half, 2 * half) - half


def wrapped(total: Tensor, bits: int) -> int:
    """Return how many of the true sums have no place in the field."""
    return int((centred(total, bits) != total).sum())
