"""Sends the signs of numbers, and their mean size.

Q(v) = (|v|_1 / d) sign(v), sign(0) = 1        error |v|^2 - |v|_1^2 / d

Biased: of all vectors with these signs and one size it is the nearest.

Source: Bernstein et al. (2018), signSGD; Karimireddy et al. (2019), with the norm; docs/algorithms.md section 7.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import BaseModel
from torch import Tensor

from raysim.compression.compressor import Compressed, Compressor, ErrorFeedback, Of, Scope, Scoped
from raysim.config.section import Section


class SignKeys(BaseModel):
    """Keys of signs: the scope."""

    scope: Scope = Scoped


class SentSign(SignKeys, Section):
    """Signs of numbers, and their mean size.

    Source: Bernstein et al. (2018), signSGD; Karimireddy et al. (2019), with the norm.
    """

    error_feedback: bool = ErrorFeedback
    name: Literal["sign"] = "sign"


class ReceivedSign(SignKeys, Section):
    """Signs of numbers, and their mean size.

    Source: Bernstein et al. (2018), signSGD; Karimireddy et al. (2019), with the norm.
    """

    of: Compressed = Of
    name: Literal["sign"] = "sign"


def make(section: SignKeys) -> Compressor:
    """Return the compressor.

    >>> make(SignKeys()).apply(torch.tensor([3.0, -1.0, 0.0, 0.0]), 0, torch.empty(4))
    tensor([ 1., -1.,  1.,  1.])
    """

    def apply(v: Tensor, key: int, out: Tensor) -> Tensor:
        size = torch.linalg.vector_norm(v, 1) / len(v)
        return torch.where(v < 0, -size, size, out=out)

    return Compressor(apply, lambda length: 32 + length)
