"""What recordings are made of: a module in training mode, the memory of its weights, and its gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysim.client.dropout import AddressedDropout
from raysim.client.trainers.gradient_seed import gradients_from
from raysim.client.trainers.loss_gradient import LossGradient


@dataclass(frozen=True)
class Weighted:
    """A module in training mode and the memory of its weights.

    forward: the module's, in its precision and with outputs in the dtype of the weights. parameters: the trained ones.
    values: the same memory without autograd. written: where the step of each goes, values themselves or the views of a
    gradient. flat: the vector that those are views of. keep: what is written to is multiplied with it first.
    keys: int64, of the masks of dropouts. state: flat vectors that a forward or a step may write to, `flat` among them.
    """

    module: nn.Module
    forward: Callable[[Tensor], Tensor]
    parameters: Sequence[Tensor]
    values: Sequence[Tensor]
    written: Sequence[Tensor]
    flat: Tensor
    keep: float
    keys: Tensor
    state: Sequence[Tensor]


def outputs_and_gradients(
    weighted: Weighted, loss_gradient: LossGradient, x: Tensor, y: Tensor
) -> Sequence[Tensor | None]:
    """Outputs, losses, and the gradient of each parameter."""
    outputs = weighted.forward(x)
    with torch.no_grad():
        dy, factor, losses = loss_gradient(outputs.detach(), y)
        dy = dy if factor == len(y) else dy.mul_(factor / len(y))
    return outputs, losses, *gradients_from(outputs, dy, weighted.parameters)


def other_tensors(weighted: Weighted) -> list[Tensor]:
    """Tensors of the module that are not parameters: a forward may write to them. Frozen ones are not copied: they may
    be large, and a module that writes to them was refused."""
    tensors: dict[int, Tensor] = {}
    for child in weighted.module.modules():
        plain = [] if isinstance(child, AddressedDropout) else vars(child).values()
        for one in (*child.buffers(recurse=False), *plain):
            if (
                isinstance(one, Tensor)
                and not isinstance(one, nn.Parameter)
                and one.layout == torch.strided
                and 0 not in one.stride()
            ):
                tensors[id(one)] = one
    return list(tensors.values())
