"""Starts autograd's backward pass from a given gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor


def gradients_from(outputs: Tensor, seed: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The gradients of sum(seed * outputs), by parameter; None where a parameter does not enter.

    As `torch.autograd.grad(outputs, parameters, seed, allow_unused=True)`, which looks into its arguments for as long
    as a tenth of a small module's local step, whose first call imports a package for symbolic algebra, and which takes
    modes off: a recording would not see what hooks read.

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
