"""Each hand-written layer against autograd, for one client and for a stack, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raysim.client.trainers.layers.build import for_one, for_stack, turned
from raysim.client.trainers.layers.max_pool2d import MaxPool2d
from raysim.client.trainers.layers.parameter import Parameter
from raysim.client.trainers.recognise import Recognised, recognise
from raysim.models.layers import CausalSelfAttention, Positions, Residual, Tied
from raysim.models.lstm import Lstm


def padded(module: Tied) -> Tied:
    """Word 2 fills texts up: it is scored like the others, but learns nothing where it is read."""
    module.embedding.padding_idx = 2
    return module


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
    "layer_norm": (nn.LayerNorm(5), (4, 5)),
    "layer_norm of two axes": (nn.LayerNorm((3, 5), eps=0.1), (2, 3, 5)),
    "layer_norm without bias": (nn.LayerNorm(5, bias=False), (5,)),
    "layer_norm without weights": (nn.LayerNorm(5, elementwise_affine=False), (4, 5)),
    "group_norm": (nn.GroupNorm(2, 6), (6, 3, 4)),
    "group_norm of single channels": (nn.GroupNorm(6, 6, eps=0.1), (6, 5)),
    "group_norm without weights": (nn.GroupNorm(3, 6, affine=False), (6, 3, 4)),
    "lstm": (Lstm(5, 3, 1), (6, 5)),
    "lstm of two layers": (Lstm(5, 3, 2), (6, 5)),
    "lstm with one bias": (Lstm(5, 3, 2, biases=1), (6, 5)),
    "lstm without bias, one step": (Lstm(5, 3, 1, biases=0), (1, 5)),
    "attention": (CausalSelfAttention(6, 3), (4, 6)),
    "positions": (Positions(1.7), (4, 5)),
    "residual": (Residual(nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 5))), (4, 5)),
    "residual of what overwrites": (Residual(nn.Sequential(nn.ReLU(), nn.Tanh())), (4, 5)),
    "residual within": (Residual(nn.Sequential(nn.Linear(5, 5), Residual(nn.Sequential(nn.Tanh())))), (5,)),
}

WORDS: dict[str, nn.Module] = {
    "embedding": nn.Embedding(7, 3),
    "embedding with padding": nn.Embedding(7, 3, padding_idx=2),
    "tied": Tied(7, 3, nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))),
    "tied with padding": padded(Tied(7, 3, nn.Sequential(nn.Linear(3, 3)))),
    "tied without body": Tied(7, 3, nn.Sequential()),
}
"""Layers of integers, which have no gradient."""
ALPHA = 0.37


def by_autograd(module: nn.Module, x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaf = x.clone().requires_grad_(x.is_floating_point())
    y = module(leaf)
    wanted = [leaf, *module.parameters()] if leaf.requires_grad else [*module.parameters()]
    gradients = torch.autograd.grad(y, wanted, dy)
    return y.detach(), *(gradients if leaf.requires_grad else (dy, *gradients))


def examples(name: str, *lead: int) -> torch.Tensor:
    """Inputs of a layer, (*lead, ...)."""
    if name in WORDS:
        return torch.randint(0, 7, (*lead, 5))
    return torch.randn(*lead, *LAYERS[name][1], dtype=torch.float64)


def layer_of(name: str) -> nn.Module:
    return (WORDS[name] if name in WORDS else LAYERS[name][0]).double()


def turn(stack: torch.Tensor) -> torch.Tensor:
    """(K, out, in) in memory that holds (in, out)."""
    return stack.transpose(1, 2).contiguous().view(stack.shape)


KEEP = pytest.mark.parametrize("keep", [1.0, 0.9, 0.0], ids=["fused step", "with decay", "stored gradient"])


@KEEP
@pytest.mark.parametrize("need_dx", [True, False], ids=["with dx", "lowest"])
@pytest.mark.parametrize("name", [*LAYERS, *WORDS])
def test_for_one_client(name: str, keep: float, need_dx: bool) -> None:
    module = layer_of(name)
    x = examples(name, 4)
    dy = torch.randn_like(module(x))
    y, dx, *gradients = by_autograd(module, x, dy)
    values = {name: p.detach().clone() for name, p in module.named_parameters()}
    into = values if keep else {name: torch.full_like(p, torch.nan) for name, p in values.items()}
    layers = recognise(module)
    assert isinstance(layers, Recognised)
    (layer,) = for_one(layers.layers, lambda n: Parameter(values[n], into[n], keep), dy, dy.dtype)
    with torch.inference_mode():
        torch.testing.assert_close(layer.forward(x.clone()), y)
        made = layer.backward(dy.clone(), ALPHA, need_dx)
    if need_dx and name not in WORDS:
        torch.testing.assert_close(made, dx)
    for (name, before), gradient in zip(module.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(into[name], keep * before + ALPHA * gradient, rtol=1e-12, atol=1e-12)


@KEEP
@pytest.mark.parametrize("name", [*LAYERS, *WORDS])
def test_for_the_first_two_of_three_stacked_clients(name: str, keep: float) -> None:
    module = layer_of(name)
    stacks = {n: torch.randn(3, *p.shape, dtype=torch.float64) for n, p in module.named_parameters()}
    x = examples(name, 2, 4)
    dy = torch.randn(2, *module(x[0]).shape, dtype=torch.float64)
    layers = recognise(module)
    assert isinstance(layers, Recognised)
    held_turned = turned(layers.layers)
    values = {n: turn(stack) if n in held_turned else stack.clone() for n, stack in stacks.items()}
    into = values if keep else {n: torch.full_like(stack, torch.nan) for n, stack in values.items()}
    (layer,) = for_stack(layers.layers, lambda n: Parameter(values[n], into[n], keep), dy, dy.dtype)
    with torch.inference_mode():
        y = layer.forward(x.clone()).clone()
        dx = layer.backward(dy.clone(), ALPHA, True)
    for client in range(2):
        with torch.no_grad():
            for parameter_name, parameter in module.named_parameters():
                parameter.copy_(stacks[parameter_name][client])
        wanted_y, wanted_dx, *gradients = by_autograd(module, x[client], dy[client])
        torch.testing.assert_close(y[client], wanted_y)
        if name not in WORDS:
            torch.testing.assert_close(dx[client], wanted_dx)
        for parameter_name, gradient in zip(stacks, gradients, strict=True):
            wanted = keep * stacks[parameter_name][client] + ALPHA * gradient
            wanted = turn(wanted[None])[0] if parameter_name in held_turned else wanted
            torch.testing.assert_close(into[parameter_name][client], wanted, rtol=1e-12, atol=1e-12)
    if keep:
        for parameter_name, stack in stacks.items():
            third = turn(stack)[2] if parameter_name in held_turned else stack[2]
            assert torch.equal(values[parameter_name][2], third), "the third client's work was done"


@pytest.mark.parametrize("name", ["max_pool2d", "max_pool2d with overlap"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_scattered_gradient_of_a_maximum_is_the_librarys(name: str, memory_format: torch.memory_format) -> None:
    # The way of cards, where the library's own backward has no deterministic kernel.
    module, shape = LAYERS[name]
    x = torch.randn(4, *shape, dtype=torch.float64).contiguous(memory_format=memory_format)
    layer = MaxPool2d(module, by_scatter=True)  # type: ignore[arg-type]
    y = layer.forward(x)
    dy = torch.randn_like(y)
    torch.testing.assert_close(layer.backward(dy.clone(), ALPHA, True), by_autograd(module, x, dy)[1])
