"""A client optimizer: a pair of functions over flat vectors. Clients keep no optimizer state between rounds.

`step` writes `params` and `state` in place and reads nothing else: a client's vectors are private to its local
training, and a local step is too short to allocate in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

State = dict[str, Tensor]

Rate = float | Tensor
"""A learning rate, or one for each row of a stack: (K, 1) in the dtype of the weights."""


class ClientOptimizer(NamedTuple):
    """`init(params) -> state` of a round's start; `step(params, gradient, state, lr)` in place.

    `step` returns nothing, or `params`. Where clients are trained together, `params` is a stack (K, P), and so is every
    vector of the state: `step` works on each number, or each row, by itself. adds_decay: `step` applies the section's
    `weight_decay` itself; otherwise the training loop adds weight_decay y to the gradient, after clipping. divisor:
    what the last step, with one learning rate for all rows, divided each number of the gradient by, from the state; not
    to be written to. None: by 1. affine: if a step is y <- y - lr (share g + constant), with a state that stays as it
    starts: share and constant, (P,) or None for 0, from that state. Then trainers may make the step without calling
    `step`. None: it is not, or does not say.
    """

    init: Callable[[Tensor], State]
    step: Callable[[Tensor, Tensor, State, Rate], None]
    adds_decay: bool = False
    divisor: Callable[[State], Tensor] | None = None
    affine: Callable[[Mapping[str, Tensor]], tuple[float, Tensor | None]] | None = None


def path(optimizer: ClientOptimizer, start: float, gradients: Sequence[float], lr: float) -> list[float]:
    """A model of one number after each local step along these gradients, in float64: to compare with an equation."""
    params, passed = torch.tensor([start], dtype=torch.float64), []
    state = optimizer.init(params)
    for g in gradients:
        optimizer.step(params, torch.full_like(params, g), state, lr)
        passed.append(params.item())
    return passed


def descend(params: Tensor, direction: Tensor, lr: Rate) -> None:
    """params <- params - lr direction, in place."""
    if isinstance(lr, Tensor):
        params.addcmul_(direction, lr, value=-1)
    else:
        params.add_(direction, alpha=-lr)


def descend_ratio(params: Tensor, numerator: Tensor, denominator: Tensor, lr: Rate) -> None:
    """params <- params - lr numerator / denominator, in place; `denominator` > 0 may be written to."""
    if isinstance(lr, Tensor):
        # A rate of 0 makes it infinite, and the step 0.
        params.addcdiv_(numerator, denominator.div_(lr), value=-1)
    else:
        params.addcdiv_(numerator, denominator, value=-lr)
