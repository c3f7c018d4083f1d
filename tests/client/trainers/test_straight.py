"""A class of one's own is the layers that its forward calls one after another, or is left to autograd."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from raysim.client.trainers.recognise import Recognised, recognise


def counter() -> Callable[[], int]:
    calls = [0]

    def count() -> int:
        calls[0] += 1
        return calls[0]

    return count


class Written(nn.Module):
    """A forward of one's own; `told` is what it does with its layers."""

    def __init__(self, told: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.told, self.calls, self.seen, self.generator = told, 0, [1], random.Random(0)
        self.draw, self.count = random.Random(0).random, counter()
        self.conv, self.drop, self.fc, self.out = nn.Conv2d(1, 2, 3), nn.Dropout(0.5), nn.Linear(8, 3), nn.Linear(3, 3)
        self.block = nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def forward(self, x: Any) -> Any:
        return self.told(self, x)


@pytest.mark.parametrize(
    "flatten",
    [
        lambda x: torch.flatten(x, 1),
        lambda x: x.flatten(start_dim=1),
        lambda x: x.view(x.size(0), -1),
        lambda x: x.contiguous().view(x.shape[0], -1),
        lambda x: x.reshape(x.size()[0], 8),
        lambda x: x.view(-1, 8),
    ],
)
def test_a_class_is_the_layers_that_its_forward_calls(flatten: Callable[[Any], Any]) -> None:
    def told(own: Any, x: Any) -> Any:
        x = functional.max_pool2d(own.conv(x), 2, ceil_mode=True)
        return own.block(own.drop(functional.relu(own.fc(flatten(x)), inplace=True)))

    module = Written(told).eval()
    found = recognise(nn.Sequential(module))
    assert isinstance(found, Recognised), found
    kinds = [nn.Conv2d, nn.MaxPool2d, nn.Flatten, nn.Linear, nn.ReLU, nn.Dropout, nn.Linear, nn.ReLU]
    assert [type(placed.module) for placed in found.layers] == kinds
    named = [placed.path for placed in found.layers if placed.module in set(module.modules())]
    assert named == ["0.conv.", "0.fc.", "0.drop.", "0.block.0.", "0.block.1."]
    (pool,) = (placed.module for placed in found.layers if isinstance(placed.module, nn.MaxPool2d))
    assert (pool.kernel_size, pool.stride, pool.ceil_mode) == (2, 2, True)
    # It can be called as before, in the mode that it was in.
    assert module(torch.ones(1, 1, 6, 6)).shape == (1, 3)
    assert not module.training


def branching(own: Any, x: Any) -> Any:
    return own.drop(own.fc(x) if x.sum() > 0 else x)


def counting(own: Any, x: Any) -> Any:
    own.calls += 1
    return own.drop(own.fc(x))


def drawing(own: Any, x: Any) -> Any:
    return own.drop(own.fc(x) if random.random() < 0.5 else own.out(x))


def looking_aside(own: Any, x: Any) -> Any:
    own.out(own.fc(x))
    return own.drop(own.fc(x))


def without_gradients(own: Any, x: Any) -> Any:
    with torch.no_grad():
        x = own.fc(x)
    return own.out(own.drop(x))


def in_its_own_precision(own: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return own.out(own.drop(own.fc(x)))


def changing_weights(own: Any, x: Any) -> Any:
    own.fc.weight.data.clamp_(-1, 1)
    return own.out(own.drop(own.fc(x)))


def keeping_count(own: Any, x: Any) -> Any:
    own.seen.append(1)
    return own.out(own.drop(own.fc(x)))


def drawing_by_itself(own: Any, x: Any) -> Any:
    return own.drop(own.fc(x) if own.generator.random() < 0.5 else own.out(x))


def switching_off(own: Any, x: Any) -> Any:
    own.drop.eval()
    x = own.drop(own.fc(x))
    own.drop.train()
    return x


def looking_at_the_size(own: Any, x: Any) -> Any:
    return own.drop(own.fc(x)) if x.size(0) == 1 else own.drop(own.out(x))


def catching(own: Any, x: Any) -> Any:
    try:
        x = own.fc(x).sigmoid()
    except Exception:
        x = own.out(x)
    return own.drop(x)


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return -gradient


def checking(own: Any, x: Any) -> Any:
    assert isinstance(x, torch.Tensor | torch.FloatTensor)
    return own.drop(own.fc(x))


def in_pieces(own: Any, x: Any) -> Any:
    return own.out(own.drop(checkpoint(own.fc, x, use_reentrant=True)))


class Mutable:
    """Equal to itself whatever it has become."""

    calls = 0


def changing_in_a_set(own: Any, x: Any) -> Any:
    (one,) = own.members
    one.calls += 1
    return own.drop(own.fc(x))


def leaving_out(own: Any, x: Any) -> Any:
    y = own.fc(x)
    own.out(own.drop(y))
    return y


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (lambda own, x: x + own.fc(x), "forward does add with the batch"),
        (lambda own, x: torch.cat([x, own.fc(x)]), "forward calls cat, which stands for none of the layers"),
        (branching, "forward asks the batch for 'sum', which stands for none of the layers"),
        (counting, "forward changes what the module holds"),
        (drawing, "forward draws random numbers"),
        (lambda own, x: own.fc(x) * torch.rand(1), "forward calls rand, which stands for none of the layers"),
        (without_gradients, "forward calls _set_grad_enabled, which"),
        (in_its_own_precision, "forward calls 'fc' without gradients, or in a precision of its own"),
        (changing_weights, "which stands for none of the layers"),
        (
            lambda own, x: setattr(own, "steps", iter([1])) or own.drop(own.fc(x)),  # type: ignore[func-returns-value]
            "forward changes what the module holds",
        ),
        (keeping_count, "forward changes what the module holds"),
        (drawing_by_itself, "forward changes what the module holds"),
        (switching_off, "forward calls 'drop' in evaluation mode"),
        (looking_at_the_size, "forward does eq with the batch or its size"),
        (catching, "forward asks the batch for 'sigmoid'"),
        (lambda own, x: own.drop(own.fc(x, 1)), "forward gives 'fc' something other than the batch"),
        (lambda own, x: own.fc(own.drop(x[0])), "forward takes parts of the batch"),
        (lambda own, x: own.drop(own.fc(Turned.apply(x))), "forward"),  # type: ignore[no-untyped-call]
        (in_pieces, "forward"),
        (checking, "forward asks what kind of thing the batch is"),
        (
            lambda own, x: setattr(own, "members", {Mutable()}) or changing_in_a_set(own, x),  # type: ignore[func-returns-value]
            "what the module holds",
        ),
        (lambda own, x: own.seen.append(own.seen) or own.drop(own.fc(x)), "forward is not a plain sequence of layers"),
        (
            lambda own, x: own.drop(own.fc(x) if own.draw() < 0.5 else own.out(x)),
            "forward changes what the module holds",
        ),
        (lambda own, x: own.count() and own.drop(own.fc(x)), "forward changes what the module holds"),
        (looking_aside, "forward uses the input of 'fc' twice"),
        (leaving_out, "forward returns something other than what its last layer makes"),
        (lambda own, x: {"logits": own.fc(x)}, "forward returns something other"),
        (lambda own, x: x, "forward calls no layer"),
        (lambda own, x: own.fc(own.drop(own.drop(x))), "calls its nn.Dropouts in another order"),
        (lambda own, x: own.fc(x), "calls its nn.Dropouts in another order"),
        (lambda own, x: functional.dropout(own.fc(x)), "forward calls dropout, which stands for none of the layers"),
        (lambda own, x: own.fc(own.fc.weight), "forward gives 'fc' something other than the batch"),
        (
            lambda own, x: own.fc(own.drop(x.view(-1, 3))),
            "view(-1, 3) is called, and no Linear behind it takes as many",
        ),
        (lambda own, x: own.drop(x.view(-1, 8)), "view(-1, 8) is called, and no Linear behind it takes as many"),
        (lambda own, x: own.fc(x.view(4, -1)), "calls view or reshape for more than flattening an example"),
        (lambda own, x: own.fc(x.view(x.size(1), -1)), "asks for a size other than the batch's"),
        (lambda own, x: own.fc(own.drop(x.flatten())), "does not flatten all axes but the batch"),
    ],
)
def test_a_forward_that_does_more_is_refused_with_the_reason(told: Callable[[Any, Any], Any], reason: str) -> None:
    module = Written(told)
    before = random.getstate(), torch.get_rng_state()
    said = recognise(module)
    assert isinstance(said, str), said
    assert reason in said
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
