"""Moves what a step reads to a point that shapes alone decide, so that a trial says the same in every process.

Whether a step is interpreted must not depend on the batch at hand, which another worker does not have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.client.trainers.recording.weighted import Weighted
from raysim.models import memory


@torch.no_grad()
def to_fixed_point(weighted: Weighted, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Write to weights, floating buffers, keys of masks and torch's generator values that shapes alone decide.

    Returns:
        a batch of such values, in the shapes of x and y; whole numbers of these stay.
    """
    for index, weight in enumerate(weighted.values):
        drawn = noise(weight, index)
        # Layers keep the size of what goes through; scales are near 1.
        fan_in = max(weight.numel() // max(len(weight), 1), 1) if weight.dim() > 1 else 0
        weight.copy_((drawn - 0.5) * (12 / fan_in) ** 0.5 if fan_in else drawn + 0.5)
    for index, buffer in enumerate(weighted.module.buffers()):
        if buffer.is_floating_point():
            # There are variances among them.
            buffer.copy_(noise(buffer, index) + 0.5)
    weighted.keys.zero_()
    torch.default_generator.manual_seed(0)
    # Positive, as pixels are: a forward may take roots and logarithms.
    x, y = (noise(one, index) if one.is_floating_point() else one.clone() for index, one in enumerate(batch))
    return x, y


def without_own_numbers(weighted: Weighted, x: Tensor) -> Tensor:
    """As `x`; whole numbers are 0 or 1 as its shape decides, if the forward takes these, which most take for an index.

    `to_fixed_point` leaves whole numbers as they are, and a norm may depend on them.
    """
    if x.is_floating_point() or x.is_complex():
        return x
    generator = torch.Generator(x.device).manual_seed(0)
    simple = torch.randint(0, 2, x.shape, generator=generator, device=x.device).to(x.dtype)
    try:
        with torch.no_grad():
            weighted.forward(simple.clone())
    except Exception as error:
        if memory.is_lacking(error):
            raise
        return x
    return simple


def noise(like: Tensor, seed: int) -> Tensor:
    """Numbers in [0, 1)."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)
