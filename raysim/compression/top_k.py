"""Sends the k largest numbers and their places; ties go to the lowest place.

Biased; its error is at most (1 - k/d) |v|^2.

Source: Wang et al. (2021), section 3.1.2; docs/algorithms.md section 8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.compression.compressor import CompressionKeys, Compressor, Share, num_kept


class TopKKeys(CompressionKeys):
    """Keys of the largest numbers."""

    fraction: float = Share


def make(section: TopKKeys) -> Compressor:
    """Return the compressor.

    >>> make(TopKKeys(fraction=0.5)).apply(torch.tensor([3.0, 2.0, -4.0, -2.0, 0.0, 1.0]), 0)
    tensor([ 3.,  2., -4.,  0.,  0.,  0.])
    """

    def apply(v: Tensor, key: int) -> Tensor:
        sizes, kept = v.abs(), num_kept(section.fraction, len(v))
        least = sizes.topk(kept, sorted=False).values.min()
        sent = torch.where(sizes > least, v, 0)
        ties = (sizes == least).nonzero()[: kept - int((sizes > least).sum()), 0]
        sent[ties] = v[ties]
        return sent

    def bits(length: int) -> int:
        return num_kept(section.fraction, length) * (32 + (length - 1).bit_length())

    return Compressor(apply, bits)
