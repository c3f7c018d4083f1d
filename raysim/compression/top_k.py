"""Sends the k largest numbers and their places; ties go to the lowest place.

Biased; its error is at most (1 - k/d) |v|^2.

Source: Wang et al. (2021), section 3.1.2; docs/algorithms.md section 7.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel
from torch import Tensor

from raysim.compression.compressor import Compressed, Compressor, ErrorFeedback, Of, Scope, Scoped, Share, num_kept
from raysim.config.section import Section


class TopKKeys(BaseModel):
    """Keys of the largest numbers."""

    scope: Scope = Scoped
    fraction: float = Share


class SentTopK(TopKKeys, Section):
    """The k largest numbers and their places."""

    error_feedback: bool = ErrorFeedback
    name: Literal["top_k"] = "top_k"


class ReceivedTopK(TopKKeys, Section):
    """The k largest numbers and their places."""

    of: Compressed = Of
    name: Literal["top_k"] = "top_k"


def make(section: TopKKeys) -> Compressor:
    """Return the compressor.

    >>> make(TopKKeys(fraction=0.5)).apply(torch.tensor([3.0, 2.0, -4.0, -2.0, 0.0, 1.0]), 0, torch.empty(6))
    tensor([ 3.,  2., -4., -0.,  0.,  0.])
    """

    def apply(v: Tensor, key: int, out: Tensor) -> Tensor:
        sizes, count = v.abs(), num_kept(section.fraction, len(v))
        least = sizes.topk(count, sorted=False).values.min()
        larger = sizes > least
        ties = (sizes == least).nonzero()[: count - int(larger.sum()), 0]
        larger[ties] = True
        return torch.mul(v, larger, out=out)

    def bits(length: int) -> int:
        return num_kept(section.fraction, length) * (32 + (length - 1).bit_length())

    return Compressor(apply, bits)
