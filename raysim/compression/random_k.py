"""Sends the numbers at k random places, which a seed names.

Unbiased times d/k, with the expected error (d/k - 1) |v|^2; "least" sends v itself there, with (1 - k/d) |v|^2.

Source: Wang et al. (2021), section 3.1.2; docs/algorithms.md section 7.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel
from torch import Tensor

from raysim import seeds
from raysim.compression.compressor import (
    Compressed,
    Compressor,
    ErrorFeedback,
    Of,
    Scale,
    Scaling,
    Scope,
    Scoped,
    Share,
    num_kept,
)
from raysim.config.section import Section


class RandomKKeys(BaseModel):
    """Keys of random places."""

    scope: Scope = Scoped
    fraction: float = Share
    scale: Scale | None = Scaling


class SentRandomK(RandomKKeys, Section):
    """The numbers at k random places."""

    error_feedback: bool = ErrorFeedback
    name: Literal["random_k"] = "random_k"


class ReceivedRandomK(RandomKKeys, Section):
    """The numbers at k random places."""

    of: Compressed = Of
    name: Literal["random_k"] = "random_k"


def make(section: RandomKKeys, scale: Scale) -> Compressor:
    """Return the compressor.

    >>> sent = make(RandomKKeys(fraction=0.25), "unbiased").apply(torch.ones(8), 0, torch.empty(8))
    >>> sorted(sent.tolist())
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 4.0]
    """

    def apply(v: Tensor, key: int, out: Tensor) -> Tensor:
        count = num_kept(section.fraction, len(v))
        chosen = seeds.generator(key).choice(len(v), count, replace=False, shuffle=False)
        places = torch.from_numpy(chosen).to(v.device)
        return out.zero_().index_copy_(0, places, v[places] * (len(v) / count if scale == "unbiased" else 1.0))

    return Compressor(apply, lambda length: 32 + 32 * num_kept(section.fraction, length))
