"""Ways in which the same numbers may lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor


def as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def last(tensor: Tensor) -> Tensor:
    """Channels last."""
    return tensor.contiguous(memory_format=torch.channels_last)


def part(tensor: Tensor) -> Tensor:
    """With others around and between them."""
    wide = torch.full((*tensor.shape[:2], tensor.shape[2] + 1, 2 * tensor.shape[3] + 3), torch.nan, dtype=tensor.dtype)
    lying = wide[:, :, 1:, 3::2]
    return lying.copy_(tensor)
