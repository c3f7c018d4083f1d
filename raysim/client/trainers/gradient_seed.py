"""Starts autograd's backward pass from a given gradient."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor


def seeded(outputs: Tensor, seed: Tensor) -> Tensor:
    """A scalar whose gradients are those of sum(seed * outputs); its value means nothing.

    Not `grad_outputs` of torch.autograd.grad: its first call imports a package for symbolic algebra, which takes up to
    a second of every worker's start.
    """
    return cast(Tensor, _Seeded.apply(outputs, seed))  # type: ignore[no-untyped-call]


class _Seeded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: Tensor, seed: Tensor) -> Tensor:
        ctx.save_for_backward(seed)
        return outputs.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor, None]:
        (seed,) = ctx.saved_tensors
        return seed, None
