"""Computes the gradient of cross entropy at outputs for many classes in C, in one pass.

Outputs are read once, and those of places that do not count are not read at all.

torch's softmax, the subtraction at the label, the mask and the factors are a pass over all outputs each. It is an
operator of torch, so that it can be recorded; it has no derivative. The bits of a row do not depend on the others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.client.trainers.class_scores import MANY
from raysim.client.trainers.kernel import operators


def is_known(outputs: Tensor, targets: Tensor, dtype: torch.dtype) -> bool:
    """Whether the operator computes the gradient of such outputs, (..., classes), for targets (...).

    dtype: for which there is a library in C.
    """
    has_classes = outputs.dim() >= 2 and outputs.shape[:-1] == targets.shape and outputs.shape[-1] >= MANY
    return has_classes and outputs.dtype == dtype and targets.dtype is torch.int64


def gradient(outputs: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
    """Return factor (softmax(outputs) - onehot(target)) of each place, and 0 where the factor is 0.

    Args:
        outputs: (..., classes), on the CPU.
        targets: int64 (...); where the factor is 0 any number.
        factors: (...), in the dtype of the outputs.

    Raises:
        IndexError: a target is no class.
    """
    made: Tensor = torch.ops.raysim.class_gradient(outputs, targets, factors)
    return made


def _gradient(outputs: Tensor, targets: Tensor, factors: Tensor) -> Tensor:
    flat = outputs.reshape(-1, outputs.shape[-1]).contiguous()
    rows = targets.reshape(-1).contiguous(), factors.reshape(-1).contiguous()
    return operators.class_gradient(flat, *rows).view(outputs.shape)


_LIBRARY = torch.library.Library("raysim", "FRAGMENT")
"""The operator is there as long as this is."""

_LIBRARY.define("class_gradient(Tensor outputs, Tensor targets, Tensor factors) -> Tensor")
_LIBRARY.impl("class_gradient", _gradient, "CPU")
