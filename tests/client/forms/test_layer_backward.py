"""Each hand-written layer against autograd, for one client and for a stack, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raysim.client.forms.layers.build import for_one, for_stack
from raysim.client.forms.layers.parameter import Parameter
from raysim.client.forms.recognise import Recognised, recognise

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "linear": (nn.Linear(5, 3), (5,)),
    "linear without bias": (nn.Linear(5, 3, bias=False), (5,)),
    "linear along time": (nn.Linear(5, 3), (4, 5)),
    "conv2d": (nn.Conv2d(2, 3, 3), (2, 7, 6)),
    "conv2d of one channel": (nn.Conv2d(1, 3, (3, 2)), (1, 7, 6)),
    "conv2d with stride, padding and dilation": (nn.Conv2d(2, 3, 3, (2, 1), (1, 2), (1, 2)), (2, 7, 8)),
    "conv2d without bias": (nn.Conv2d(2, 3, 3, bias=False), (2, 5, 5)),
    "relu": (nn.ReLU(), (4, 3)),
    "tanh": (nn.Tanh(), (4, 3)),
    "max_pool2d": (nn.MaxPool2d(2), (3, 7, 6)),
    "max_pool2d with overlap": (nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), (3, 7, 6)),
    "flatten": (nn.Flatten(), (3, 2, 4)),
}
ALPHA = 0.37


def by_autograd(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    return y.detach(), *torch.autograd.grad(y, [leaf, *module.parameters()], dy)


@pytest.mark.parametrize("keep", [1.0, 0.0], ids=["fused step", "stored gradient"])
@pytest.mark.parametrize(("module", "shape"), LAYERS.values(), ids=LAYERS)
def test_for_one_client(module: nn.Module, shape: tuple[int, ...], keep: float) -> None:
    module = module.double()
    x = torch.randn(4, *shape, dtype=torch.float64)
    dy = torch.randn_like(module(x))
    y, dx, *gradients = by_autograd(module, x, dy)
    values = {name: p.detach().clone() for name, p in module.named_parameters()}
    into = values if keep else {name: torch.full_like(p, torch.nan) for name, p in values.items()}
    layers = recognise(module)
    assert isinstance(layers, Recognised)
    (layer,) = for_one(layers.layers, lambda n: Parameter(values[n], into[n], keep), x, x.dtype)
    with torch.inference_mode():
        torch.testing.assert_close(layer.forward(x.clone()), y)
        torch.testing.assert_close(layer.backward(dy.clone(), ALPHA, True), dx)
    for (name, before), gradient in zip(module.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(into[name], keep * before + ALPHA * gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("keep", [1.0, 0.0], ids=["fused step", "stored gradient"])
@pytest.mark.parametrize(("module", "shape"), LAYERS.values(), ids=LAYERS)
def test_for_the_first_two_of_three_stacked_clients(module: nn.Module, shape: tuple[int, ...], keep: float) -> None:
    module = module.double()
    stacks = {n: torch.randn(3, *p.shape, dtype=torch.float64) for n, p in module.named_parameters()}
    x = torch.randn(2, 4, *shape, dtype=torch.float64)
    dy = torch.randn(2, *module(x[0]).shape, dtype=torch.float64)
    values = {n: stack.clone() for n, stack in stacks.items()}
    into = values if keep else {n: torch.full_like(stack, torch.nan) for n, stack in values.items()}
    layers = recognise(module)
    assert isinstance(layers, Recognised)
    (layer,) = for_stack(layers.layers, lambda n: Parameter(values[n], into[n], keep), x)
    with torch.inference_mode():
        y, dx = layer.forward(x.clone()), None
        y = y.clone()
        dx = layer.backward(dy.clone(), ALPHA, True)
    for client in range(2):
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(stacks[name][client])
        wanted_y, wanted_dx, *gradients = by_autograd(module, x[client], dy[client])
        torch.testing.assert_close(y[client], wanted_y)
        torch.testing.assert_close(dx[client], wanted_dx)
        for name, gradient in zip(stacks, gradients, strict=True):
            wanted = keep * stacks[name][client] + ALPHA * gradient
            torch.testing.assert_close(into[name][client], wanted, rtol=1e-12, atol=1e-12)
    if keep:
        for name in stacks:
            assert torch.equal(values[name][2], stacks[name][2]), "the third client's work was done"
