"""What recordings are made of: a module in training mode, the memory of its weights, and its gradients by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysim.client.dropout import AddressedDropout
from raysim.client.trainers.gradient_seed import seeded
from raysim.client.trainers.loss_gradient import LossGradient
from raysim.client.trainers.recording import elsewhere
from raysim.models import memory


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
        dy = dy.mul_(factor / len(y))
    return outputs, losses, *torch.autograd.grad(seeded(outputs, dy), weighted.parameters, allow_unused=True)


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


def fixed_batch(weighted: Weighted, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """A batch of the same shapes whose numbers the module decides.

    Whether a step is interpreted must not depend on the batch at hand, which another worker does not have.
    """
    return elsewhere.fixed(weighted.module, weighted.values, weighted.keys, *batch)


def without_own_numbers(weighted: Weighted, x: Tensor) -> Tensor:
    """As `x`; whole numbers are 0 or 1 as its shape decides, if the forward takes these, which most take for an index.

    `fixed_batch` leaves whole numbers as they are, and a norm may depend on them.
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
