"""Rotates vectors at random: R v = H S P v / sqrt(D), an orthogonal map that spreads every number over all of them.

P pads v with zeros to D = 2^ceil(log2 d) numbers, S multiplies by random signs, H is the Walsh-Hadamard matrix. Who
knows the key of the signs rotates back: R^-1 u = the first d numbers of S H u / sqrt(D).

Source: Suresh et al. (2017); docs/algorithms.md section 7.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from raysim import seeds

RADIX = 16
"""Numbers that one product with a Walsh-Hadamard matrix transforms: the product is small enough for the cache."""


def rotated_length(length: int) -> int:
    """Return D, the least power of 2 that is at least d.

    >>> [rotated_length(d) for d in (1, 2, 3, 8, 9)]
    [1, 2, 4, 8, 16]
    """
    return 1 << (length - 1).bit_length()


def rotated(values: Tensor, key: int) -> Tensor:
    """Return R v, (D,), of a vector (d,); `key` addresses the signs (seeds.py).

    >>> v = torch.tensor([3.0, 4.0, 12.0])
    >>> round(rotated(v, key=1).norm().item(), 5)
    13.0
    """
    padded = values.new_zeros(rotated_length(len(values)))
    padded[: len(values)] = values
    return hadamard(padded.mul_(_signs(key, padded)))


def rotated_back(turned: Tensor, key: int, out: Tensor) -> Tensor:
    """Write R^-1 u, (d,), of a vector (D,) that was rotated with the same key, to `out`.

    >>> rotated_back(rotated(torch.tensor([3.0, 4.0, 12.0]), key=1), key=1, out=torch.empty(3)).round()
    tensor([ 3.,  4., 12.])
    """
    return out.copy_(hadamard(turned).mul_(_signs(key, turned))[: len(out)])


def hadamard(values: Tensor) -> Tensor:
    """Return H v / sqrt(D), a new vector; D is a power of 2.

    >>> hadamard(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    left, turned = len(values), values
    while left > 1:
        # A product transforms the lowest bits of the index and moves them to the top; after all, they are in place.
        radix = min(RADIX, left)
        turned = (_matrix(radix).to(values) @ turned.view(-1, radix).t()).view(-1)
        left //= radix
    return turned * (1 / math.sqrt(len(values)))


@cache
def _matrix(size: int) -> Tensor:
    """Return the Walsh-Hadamard matrix (size, size) of ones and minus ones."""
    if size == 1:
        return torch.ones(1, 1)
    half = _matrix(size // 2)
    return torch.cat([torch.cat([half, half], 1), torch.cat([half, -half], 1)])


def _signs(key: int, like: Tensor) -> Tensor:
    draws = seeds.stream(key, -(-len(like) // 64))
    bits = np.unpackbits(draws.astype("<u8", copy=False).view(np.uint8), count=len(like))
    return torch.from_numpy(bits).to(like).mul_(2).sub_(1)
