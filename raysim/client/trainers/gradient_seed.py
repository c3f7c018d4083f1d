"""Starts autograd's backward pass from a given gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor


def gradients_from(outputs: Tensor, seed: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of sum(seed * outputs), by parameter; None where a parameter does not enter.

    As `torch.autograd.grad(outputs, parameters, seed, allow_unused=True)`, which looks into its arguments for as long
    as a tenth of a small module's local step, and whose first call imports a package for symbolic algebra.

    Raises:
        RuntimeError: the outputs depend on no parameter.
    """
    engine = torch.autograd.Variable._execution_engine
    # Neither kept for a second pass, nor differentiable; leaves get no `grad`.
    return cast(
        tuple[Tensor | None, ...],
        engine.run_backward(
            (outputs,), (seed,), False, False, tuple(parameters), allow_unreachable=True, accumulate_grad=False
        ),
    )


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
