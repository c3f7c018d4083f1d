"""Tries whether a module computes what the layers that are recognised in it compute one after another.

Recognising calls a forward with something that is no tensor, and no layer does its work. So it does not see a forward
that asks for the class of its input, or that changes how a layer works only while it calls it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from raysim.client.trainers.recognise import Recognised, recognise
from raysim.config.global_draws import draws
from raysim.config.repetition import is_close
from raysim.models import memory
from raysim.models.probe import unequal_sum

RELATIVE = 1e-3
"""Difference, relative to the largest number, that is none: kernels may add up in another order."""

OWN_PACKAGES = ("torch", "raysim")
"""Layers of these do what their classes say."""


def recognised_on(module: nn.Module, x: Tensor) -> Recognised | str:
    """Return the module's layers, or the reason why it is not recognised: a difference on this batch is one.

    Args:
        module: in training, with its values; it is called.
        x: a batch. Where the module fails on it, nothing is compared.
    """
    layers = recognise(module)
    if isinstance(layers, str) or all(_is_known(child) for child in module.modules()):
        return layers
    with without_dropout(module), draws():
        try:
            own = outputs_and_gradients(module, module, (x,))
        except Exception:
            # The trial of the whole plan says why.
            return layers
        try:
            alike = all(map(_is_alike, own, outputs_and_gradients(module, _line(layers), (x,))))
        except Exception as error:
            if memory.is_lacking(error):
                # How clients are trained must not depend on what else is in memory.
                raise
            alike = False
    if alike:
        return layers
    name = type(module).__name__
    return f"{name}.forward gives other outputs or gradients on a batch than its layers one after another"


def _is_known(module: nn.Module) -> bool:
    return type(module).__module__.partition(".")[0] in OWN_PACKAGES


def _line(layers: Recognised) -> nn.Sequential:
    return nn.Sequential(*(placed.module for placed in layers.layers))


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """Recognised layers may stand in another order, in which masks are drawn otherwise."""
    layers = [child for child in module.modules() if type(child) is nn.Dropout and child.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


def outputs_and_gradients(module: nn.Module, called: nn.Module, pieces: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The outputs for a batch in pieces, and the gradient of an unequal sum of them by the module's parameters."""
    parameters = [one for one in module.parameters() if one.requires_grad]
    with torch.enable_grad():
        outputs = torch.cat([called(piece.clone()) for piece in pieces])
        gradients = torch.autograd.grad(unequal_sum(outputs), parameters, allow_unused=True)
    pairs = zip(gradients, parameters, strict=True)
    whole = [(torch.zeros_like(one) if gradient is None else gradient).reshape(-1) for gradient, one in pairs]
    return outputs.detach().clone(), torch.cat(whole)


def _is_alike(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and is_close(one, other, RELATIVE)
