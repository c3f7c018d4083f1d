"""What happens to a gradient before the optimizer sees it: clip by its norm, then add weight decay * y."""

from __future__ import annotations

import torch
from torch import Tensor


def shape_gradient(gradient: Tensor, params: Tensor, max_grad_norm: float | None, weight_decay: float) -> None:
    """In place: g <- g * min(1, max_grad_norm / |g|), then g <- g + weight_decay * y; rows of a stack each by itself.

    Args:
        gradient: (P,) or (A, P), gaps zero.
        params: y, the weights, in the same shape.
        max_grad_norm: None clips nothing.
        weight_decay: 0 adds nothing.
    """
    if max_grad_norm is not None:
        norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        # A zero gradient gives infinity, clamped to 1; a NaN stays one, and the client is rejected.
        gradient.mul_((max_grad_norm / norm).clamp(max=1.0))
    if weight_decay:
        gradient.add_(params, alpha=weight_decay)
