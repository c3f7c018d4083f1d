"""Local steps that the compiled interpreter carries out: every operator that it knows, in both dtypes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import raysim
from raysim.client import dropout
from raysim.client.section import ClientSection
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.construction import make, step_obstacles
from raysim.client.trainers.kernel.operators import Code, Interpreter
from raysim.client.trainers.recording import lowering
from raysim.client.trainers.recording.instruction_list import InstructionList
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.engine.plan.resolve import resolve
from raysim.errors import ResourceError
from raysim.models.model import create
from raysim.models.task import task_for
from raysim.storage import compiled_c
from tests.support.trainer_models import dataset

TASK = task_for(4, None)
WIDTH = 12


class Between(nn.Module):
    """A function of hidden numbers (B, 12), with weights before and behind it."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = function
        self.a, self.b = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 4)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.function(self, self.a(x)))
        return made


def maps(h: Tensor) -> Tensor:
    """Hidden numbers as maps of 3 channels, 4 x 4."""
    return h.view(-1, 3, 2, 2).repeat(1, 1, 2, 2) * torch.linspace(1, 2, 16, dtype=h.dtype).view(4, 4)


def flat(y: Tensor) -> Tensor:
    """As many numbers as `Between` takes, of any maps."""
    y = y.flatten(1)
    return torch.cat([y] * (WIDTH // y.shape[1] + 1), 1)[:, :WIDTH]


def of(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A module of a function without weights."""
    return lambda: Between(lambda self, h: function(h))


def layer(make: Callable[[], nn.Module], on_maps: bool = False) -> Callable[[], nn.Module]:
    """A module of a layer."""
    return lambda: Between(lambda self, h: flat(self.layer(maps(h))) if on_maps else self.layer(h), layer=make())


def right_half(h: Tensor) -> Tensor:
    """A map (4, 4) of zeros, and of ones in its right half."""
    return (torch.arange(16) % 4 > 1).to(h.dtype).view(4, 4)


def changed_part(h: Tensor) -> Tensor:
    """Hidden numbers, of which a forward writes over some."""
    made = h * 2
    made[:, :3] = h[:, 3:6]
    made[:, 3].zero_()
    made[:, 4:6] += h[:, :2]
    made[:, 6].fill_(0.5)
    return made


def filled_part(h: Tensor, number: Tensor) -> Tensor:
    """Hidden numbers, of which a forward makes a column one number, which is computed."""
    made = h * 2
    made[:, 6] = number
    return made


def changed_between(convolution: nn.Module, h: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """What a convolution without a backward pass makes of maps, and of the same maps when they were changed."""
    with torch.no_grad():
        h = h.clone()
        first = convolution(h)
        second = convolution(change(h))
    return flat(first * second) + flat(h)


MODULES: Mapping[str, Callable[[], nn.Module]] = {
    "relu": of(torch.relu),
    "leaky relu": of(lambda h: functional.leaky_relu(h, 0.2)),
    "hardtanh": of(lambda h: functional.hardtanh(h, -0.3, 0.4)),
    "repeated": of(lambda h: h.repeat(1, 2).view(-1, 2, WIDTH).sum(1) + h[:, :4].repeat(1, 3)),
    "tanh": of(torch.tanh),
    "sigmoid": of(torch.sigmoid),
    "gelu": of(functional.gelu),
    "silu": of(functional.silu),
    "hardswish": of(lambda h: functional.hardswish(h * 4)),
    "elu": of(lambda h: functional.elu(h, 0.7)),
    "elu in place": of(lambda h: functional.elu_(h * 2)),
    "selu": of(torch.selu),
    "softplus": of(lambda h: functional.softplus(h * 4, threshold=1.0)),
    "mish": of(functional.mish),
    "hardsigmoid": of(lambda h: functional.hardsigmoid(h * 4)),
    "gelu by tanh": of(lambda h: functional.gelu(h, approximate="tanh")),
    "gates": of(lambda h: functional.glu(h.view(-1, 2, 6).repeat(1, 1, 2).transpose(1, 2), -1).flatten(1)),
    "gates of rows": of(lambda h: functional.glu(torch.cat([h, h * 2]), 0)),
    "exp": of(torch.exp),
    "sqrt": of(lambda h: (h * h + 1).sqrt()),
    "log": of(lambda h: (h * h + 1).log()),
    "abs and square": of(lambda h: h.abs() + h**2),
    "arithmetic": of(lambda h: (2 - h) * 3 / (1 + h * h) - h / 4 + torch.sub(h, 1.5, alpha=2)),
    "rows and columns": of(lambda h: h - h.mean(0) + h.sum(1, keepdim=True) * h.mean()),
    "softmax": of(lambda h: torch.softmax(h, 1) + torch.log_softmax(h.view(-1, 3, 4), -1).flatten(1)),
    "softmax over other axes": of(lambda h: (h.view(-1, 3, 4).softmax(1) + h.view(-1, 3, 4).log_softmax(0)).flatten(1)),
    "parts": of(lambda h: torch.cat([h[:, 3:], h[:, :3]], 1) + h[:, :1]),
    "stack and select": of(lambda h: torch.stack([h, h * 2], 1)[:, 1] + torch.stack([h, h], 2).select(2, 0)),
    "split": of(lambda h: torch.cat([one.tanh() for one in h.chunk(3, 1)][::-1], 1)),
    "cumulative sums": of(lambda h: h.view(-1, 3, 4).cumsum(1).flatten(1) + h.cumsum(1) * h.cumsum(0)),
    "cumulative sums in place": of(lambda h: (h * 1).cumsum_(-1)),
    "turned round": of(lambda h: h.flip(1) * h.view(-1, 3, 4).flip(-2).flatten(1)),
    "turned": of(lambda h: h.view(-1, 3, 4).transpose(1, 2).reshape(-1, WIDTH)),
    "in place": of(lambda h: (h * 1).mul_(2).add_(h).tanh_()),
    "products of three axes": of(lambda h: (h.view(-1, 3, 4) @ h.view(-1, 4, 3) @ h.view(-1, 3, 4)).flatten(1)),
    "layer norm": layer(lambda: nn.LayerNorm(WIDTH)),
    "layer norm without weights": layer(lambda: nn.LayerNorm(WIDTH, elementwise_affine=False)),
    "layer norm over two axes": lambda: Between(
        lambda self, h: self.norm(h.view(-1, 3, 4)).flatten(1), norm=nn.LayerNorm((3, 4))
    ),
    "layer norm of what is turned": lambda: Between(
        lambda self, h: self.norm(h.view(-1, 3, 4).transpose(1, 2)).flatten(1), norm=nn.LayerNorm(3)
    ),
    "batch norm": layer(lambda: nn.BatchNorm1d(WIDTH)),
    "batch norm of maps": layer(lambda: nn.BatchNorm2d(3), on_maps=True),
    "batch norm without statistics": layer(lambda: nn.BatchNorm1d(WIDTH, track_running_stats=False, affine=False)),
    "group norm": layer(lambda: nn.GroupNorm(3, 3), on_maps=True),
    "group norm without weights": layer(lambda: nn.GroupNorm(3, 3, affine=False), on_maps=True),
    "group norm of all": layer(lambda: nn.GroupNorm(1, 3), on_maps=True),
    "convolution": layer(lambda: nn.Conv2d(3, 4, 3, padding=1), on_maps=True),
    "convolution, strides and dilation": layer(
        lambda: nn.Conv2d(3, 4, (2, 2), stride=(1, 2), padding=(2, 1), dilation=2, bias=False), on_maps=True
    ),
    "convolution of points": layer(lambda: nn.Conv2d(3, 5, 1), on_maps=True),
    "convolution in groups": lambda: Between(
        lambda self, h: flat(self.layer(maps(h).repeat(1, 2, 1, 1))), layer=nn.Conv2d(6, 4, 3, groups=2, padding=1)
    ),
    "a kernel for each channel": layer(lambda: nn.Conv2d(3, 3, 3, groups=3, padding=1, stride=2), on_maps=True),
    "two convolutions": layer(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.ReLU()), on_maps=True
    ),
    "two convolutions that look alike": layer(
        lambda: nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1)), on_maps=True
    ),
    "convolution over one axis": lambda: Between(
        lambda self, h: flat(self.layer(h.view(-1, 3, 4))), layer=nn.Conv1d(3, 4, 2, padding=1)
    ),
    "max pooling": layer(lambda: nn.MaxPool2d(2), on_maps=True),
    "max pooling, windows that overlap": layer(lambda: nn.MaxPool2d(3, stride=1, padding=1), on_maps=True),
    "average pooling": layer(lambda: nn.AvgPool2d(2), on_maps=True),
    "average pooling, windows that overlap": layer(lambda: nn.AvgPool2d(3, stride=1), on_maps=True),
    "max pooling, windows that are infinite": of(
        lambda h: flat(functional.max_pool2d(torch.log(right_half(h)) - maps(h).square(), 3, 2, 1).exp())
    ),
    "a product of no terms": of(
        lambda h: h + (h.view(-1, 3, 4)[..., :0] @ h.view(-1, 4, 3)[:, :0]).sum((1, 2))[:, None]
    ),
    "a change of a part": of(changed_part),
    "a part filled with a weight": lambda: Between(
        lambda self, h: filled_part(h, self.scale), scale=nn.Parameter(torch.tensor(1.5))
    ),
    "a part filled with a number of the batch": of(lambda h: filled_part(h, h.detach().mean())),
    "signs": of(lambda h: h.square() * torch.sgn(h) + torch.sign(h)),
    "a mask of truth values": of(lambda h: h * (torch.arange(WIDTH) < 7) + torch.tensor(2)),
    "powers": of(lambda h: (h * h + 1).pow(0.5).pow(-1) + h.pow(3) + torch.rsub(h, 2.0, alpha=3)),
    "mean square norm": of(lambda h: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "a sum of one number": lambda: Between(
        lambda self, h: h * self.scale.sum(0) + self.scale.mean(-1), scale=nn.Parameter(torch.tensor(1.5))
    ),
    "a division by zero": of(lambda h: h + torch.sigmoid(h.detach() / 0.0)),
    "convolutions with a change between": lambda: Between(
        lambda self, h: changed_between(self.layer, maps(h), lambda one: one.mul_(2)), layer=nn.Conv2d(3, 4, 3)
    ),
    "embedding with padding": lambda: Between(
        lambda self, h: h + self.table(torch.arange(len(h)) % 3), table=nn.Embedding(3, WIDTH, padding_idx=0)
    ),
    "gated recurrent": lambda: Between(
        lambda self, h: self.gru(h.view(-1, 4, 3))[0].flatten(1)[:, :WIDTH], gru=nn.GRU(3, 5, batch_first=True)
    ),
    "long short-term memory": lambda: Between(
        lambda self, h: self.lstm(h.view(-1, 4, 3))[0].flatten(1)[:, :WIDTH], lstm=nn.LSTM(3, 5, 2, batch_first=True)
    ),
    "long short-term memory in both directions": lambda: Between(
        lambda self, h: self.lstm(h.view(-1, 4, 3))[0].flatten(1)[:, :WIDTH],
        lstm=nn.LSTM(3, 5, bidirectional=True, batch_first=True),
    ),
    "dropout": layer(lambda: nn.Dropout(0.3)),
    "dropout of maps": layer(lambda: nn.Sequential(nn.Conv2d(3, 3, 3), nn.Dropout(0.5)), on_maps=True),
    "a weight twice": lambda: Between(
        lambda self, h: torch.relu(h @ self.w) @ self.w, w=nn.Parameter(torch.eye(WIDTH) + 0.1)
    ),
    "attention": lambda: Between(
        lambda self, h: self.layer(*[h.view(-1, 3, 4)] * 3, need_weights=False)[0].flatten(1),
        layer=nn.MultiheadAttention(4, 2, batch_first=True),
    ),
}
BY_TORCH: Mapping[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "two in a row, of a view": (of(lambda h: h.sinh().view(-1, 3, 4).transpose(1, 2).cumsum(1).flatten(1)), {"sinh"}),
    "of the batch, once more behind weights": (lambda: OfTheBatch(), {"erf", "addcmul"}),
    "a choice": (of(lambda h: torch.where(h > 0, h, h.exp() - 1)), {"gt", "where"}),
    "a mask of scores": (
        of(lambda h: h.masked_fill(torch.arange(WIDTH) > 8, -torch.inf).softmax(1)),
        {"masked_fill"},
    ),
    "a mask in place": (of(lambda h: (h * 2).masked_fill_(h > 0.3, 0.5).tanh()), {"gt", "masked_fill_"}),
    "the largest": (of(lambda h: h.view(-1, 3, 4).max(2).values.repeat(1, 4)), {"max"}),
    "sorted": (of(lambda h: h.sort(1).values * 2), {"sort"}),
    "an average of the largest": (of(lambda h: h.topk(3, 1).values.mean(1, keepdim=True) + h), {"topk"}),
    "a power of the batch": (of(lambda h: h.abs().add(1).pow(h[0, 0].detach().sign() + 2)), {"pow"}),
    "an elu of its own scale": (of(lambda h: functional.celu(h, 2.0)), {"celu", "elu_backward"}),
    "a large convolution": (lambda: LargeConvolution(nn.Identity()), {"convolution"}),
    "a large batch norm": (lambda: LargeConvolution(nn.BatchNorm2d(8)), {"convolution", "native_batch_norm"}),
    "many logarithms": (of(lambda h: h + (h.repeat(1, 150).square() + 1).log().mean(1, keepdim=True)), {"log"}),
    "a large softmax over other axes": (
        of(lambda h: h + h[:, None].repeat(1, 150, 1).softmax(1).square().sum(1)),
        {"_softmax", "_softmax_backward_data"},
    ),
    "a frozen convolution of three axes": (
        layer(lambda: nn.Sequential(nn.Unflatten(1, (3, 2, 2, 1)), nn.Conv3d(3, 12, (2, 2, 1)), nn.Flatten())),
        {"convolution"},
    ),
    "embedding": (
        lambda: Between(
            lambda self, h: h + self.table((h.detach() * 3).long().abs() % 5).sum(1), table=nn.Embedding(5, WIDTH)
        ),
        {"_to_copy", "remainder"},
    ),
    "two axes turned round": (of(lambda h: h.view(-1, 3, 4).flip((1, 2)).flatten(1)), {"flip"}),
    "cumulative sums over many places": (of(lambda h: h + h.repeat(1, 30).cumsum(1)[:, ::30]), {"cumsum", "flip"}),
    "outputs": (lambda: nn.Sequential(nn.Linear(6, 4), nn.LogSigmoid()), {"log_sigmoid_forward"}),
    "a weight": (lambda: OfAWeight(), {"logcumsumexp"}),
    "a buffer that is written to": (lambda: Counted(), {"cumprod"}),
    "a batch that is changed": (lambda: ChangesItsBatch(), {"sinh"}),
    "maps between convolutions": (
        lambda: Between(
            lambda self, h: changed_between(self.layer, maps(h), lambda one: one.cumprod_(3)), layer=nn.Conv2d(3, 4, 3)
        ),
        {"cumprod_"},
    ),
    "the batch itself": (lambda: WritesToBatch(), {"cumprod_"}),
    "what was read before": (lambda: ChangesWhatWasRead(), {"cumprod_"}),
}
"""Modules with operators that the interpreter does not know, or not so, and some of these."""


class OfTheBatch(nn.Module):
    """Torch reads the batch, and a view of it, behind a weight and before it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.erf(self.a(x.sinh())) + torch.addcmul(x, x.view(-1, 3, 2).flip(2).flatten(1), self.a(x).erf())
        made: Tensor = self.b(h)
        return made


class LargeConvolution(nn.Module):
    """Three maps of 24 x 24 see some 138,000 numbers, of which torch makes eight channels."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.a, self.c, self.norm, self.b = nn.Linear(6, 4), nn.Conv2d(1, 8, 7, padding=3), norm, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.a(x).view(-1, 1, 2, 2).repeat(1, 1, 12, 12)
        made: Tensor = self.b(torch.relu(self.norm(self.c(maps))).mean((2, 3)))
        return made


class OfAWeight(nn.Module):
    """Weights that torch reads."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.b = nn.Parameter(torch.rand(6)), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(x * self.steps.logcumsumexp(0))
        return made


class Counted(nn.Module):
    """A buffer into which torch writes what follows from weights."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)
        self.register_buffer("total", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        with torch.no_grad():
            self.total.mul_(0.5).add_(h.cumprod(0)[-1])
        made: Tensor = self.b(h / self.total.square().add(1))
        return made


class ChangesItsBatch(nn.Module):
    """An operator by torch reads the batch behind a change of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.a(x * 1) + self.a(x.mul_(2).sinh()))
        return made


class WritesToBatch(nn.Module):
    """Torch writes to the batch, which the interpreter reads before and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.a(x)
        made: Tensor = self.c(first.detach() * self.b(x.cumprod_(1)))
        return made


class ChangesWhatWasRead(nn.Module):
    """Were torch to compute the products first, the first addition would read what the second one reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        products = x.cumprod(1)
        h = self.a(x) + products
        made: Tensor = self.b(h + products.cumprod_(1))
        return made


ALL = {**MODULES, **{f"{name}, by torch": module for name, (module, _) in BY_TORCH.items()}}


@pytest.fixture
def paused(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """For each program that is made, the operators for which it pauses between its instructions."""
    found: list[set[str]] = []
    made = InstructionList.interpreter

    def noted(self: InstructionList, by_torch: Any) -> Interpreter:
        found.append({op.function._schema.name.removeprefix("aten::") for at, ops in self.pauses if at for op in ops})
        return made(self, by_torch)

    monkeypatch.setattr(InstructionList, "interpreter", noted)
    return found


def steps(name: str, dtype: torch.dtype, plain: bool, rows: int = 5) -> tuple[BoundModule, BoundModule]:
    """The module's weights after three steps: by the interpreter, and by autograd."""
    model, weights = create(ALL[name], 0, dtype)
    batches = [
        (torch.randn(rows, 6, generator=torch.Generator().manual_seed(seed)).to(dtype), torch.arange(rows) % 4)
        for seed in range(3)
    ]
    bound = []
    for recording in (StepRecording((rows,), interprets=True), StepRecording()):
        one = BoundModule(model, weights, TASK, dtype, plain=plain, recording=recording)
        one.load(weights)
        masks = dropout.keys_of_steps(5, 3, len(one.dropouts), torch.device("cpu"))
        with torch.no_grad():
            for (x, y), keys in zip(batches, masks, strict=True):
                one.record([x], [y], [rows])
                one.differentiate(x.clone(), y, keys, -0.1 if plain else 1.0)
        bound.append(one)
    return bound[0], bound[1]


@pytest.mark.parametrize("plain", [True, False], ids=["steps", "gradients"])
@pytest.mark.parametrize("name", ALL)
def test_an_interpreted_step_is_that_of_autograd(name: str, plain: bool) -> None:
    got, wanted = steps(name, torch.float64, plain)
    for one, other in ((got.gradient, wanted.gradient), (got.weights.buffers, wanted.weights.buffers)):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert torch.equal(got.weights.counters, wanted.weights.counters)


@pytest.mark.parametrize("name", ALL)
def test_in_float32_it_is_that_to_rounding(name: str) -> None:
    got, wanted = steps(name, torch.float32, True)
    torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_torch_carries_out_what_is_not_known(name: str, dtype: torch.dtype, paused: list[set[str]]) -> None:
    assert known(ALL[name], torch.randn(5, 6, dtype=dtype), dtype) == StepObstacles()
    (between,) = paused
    if name in MODULES:
        # torch takes a sixth in float32 there, also of float64.
        assert between <= {"hardsigmoid_backward"}
    else:
        assert between >= BY_TORCH[name.removesuffix(", by torch")][1]


def known(module: Callable[[], nn.Module], x: Tensor, dtype: torch.dtype = torch.float32) -> StepObstacles:
    model, weights = create(module, 0, dtype)
    return step_obstacles(model, weights, TASK, ClientSection(), "float32", (x, torch.arange(len(x)) % 4), True)


def test_whether_a_step_is_interpreted_does_not_depend_on_the_batch() -> None:
    # Neither torch nor the interpreter knows the variance of such numbers in float32.
    x = 1e4 + 1e-3 * torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    for norm in (nn.LayerNorm, nn.BatchNorm1d):
        assert known(lambda: nn.Sequential(norm(6), nn.Linear(6, 4)), x).interpreted is None  # noqa: B023


class WholeNumbers(nn.Module):
    """Norms whole numbers, of which some columns may hold one number only."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.b = nn.BatchNorm1d(6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.norm(x.to(self.b.weight.dtype)))
        return made


def test_whole_numbers_of_a_batch_decide_nothing(paused: list[set[str]]) -> None:
    # torch's mean of the latter is not one of them in float32.
    for x in (torch.arange(30).view(5, 6), torch.full((5, 6), 1_000_003)):
        assert known(WholeNumbers, x).interpreted is None
    assert paused == [set(), set()]


class FromOne(nn.Module):
    """Looks words up that are counted from one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.b = nn.Embedding(6, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.table(x - 1).sum(1))
        return made


def test_whole_numbers_that_a_forward_needs_are_those_of_the_batch() -> None:
    assert known(FromOne, torch.full((5, 3), 4)).interpreted is None


class InPlace(nn.Module):
    """Counts each word one up, in the batch itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.b = nn.Embedding(6, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.table(x.add_(1)).sum(1))
        return made


def test_a_batch_that_a_forward_writes_to_is_tried_as_it_was() -> None:
    assert known(InPlace, torch.full((5, 3), 4)).recorded is None


def test_what_instructions_leave_out_is_not_found_where_torch_has_left_it(
    monkeypatch: pytest.MonkeyPatch, paused: list[set[str]]
) -> None:
    monkeypatch.setattr(lowering, "_LOWERED", {**lowering._LOWERED, "tanh": lambda lines, out, named: None})
    assert known(MODULES["tanh"], torch.randn(5, 6)).interpreted is None
    assert paused == [{"tanh"}]


def test_instructions_before_an_error_are_taken_back(monkeypatch: pytest.MonkeyPatch, paused: list[set[str]]) -> None:
    def fails(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
        lines.by_number(Code.FILL, named["self"], p=7.0)
        raise RuntimeError("of a layout")

    monkeypatch.setattr(lowering, "_LOWERED", {**lowering._LOWERED, "tanh": fails})
    got, wanted = steps("tanh", torch.float64, True)
    assert paused == [{"tanh"}]
    torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-9, atol=1e-12)


def test_an_error_of_the_interpreter_leaves_the_step_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
        raise IndexError("of its own")

    monkeypatch.setattr(lowering, "_LOWERED", {**lowering._LOWERED, "tanh": fails})
    found = known(MODULES["tanh"], torch.randn(5, 6))
    assert found.recorded is None
    assert found.interpreted == "it cannot be interpreted (IndexError: of its own)"


class Draws(nn.Module):
    """Draws by hidden numbers, and behind that by none, which could be drawn first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        kept = torch.bernoulli(torch.sigmoid(h.detach()))
        made: Tensor = self.b(h * kept + torch.rand_like(x))
        return made


def test_torch_draws_in_the_order_of_the_forward() -> None:
    model, weights = create(Draws, 0, torch.float64)
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.arange(5) % 4
    found = []
    for recording in (StepRecording((5,), interprets=True), StepRecording()):
        one = BoundModule(model, weights, TASK, torch.float64, plain=True, recording=recording)
        one.load(weights)
        with torch.no_grad():
            one.record([x], [y], [5])
            torch.manual_seed(3)
            one.differentiate(x, y, None, -0.1)
        found.append(one.gradient)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_a_target_that_is_no_class_is_torchs_error() -> None:
    bound = BoundModule(
        *create(MODULES["tanh"], 0, torch.float32),
        TASK,
        torch.float32,
        plain=True,
        recording=StepRecording((5,), interprets=True),
    )
    x, y = torch.randn(5, 6), torch.arange(5) % 4
    with torch.no_grad():
        bound.record([x], [y], [5])
        with pytest.raises(RuntimeError, match="out of bounds"):
            bound.differentiate(x, y + 1, None, -0.1)


def test_a_batch_of_another_shape_or_dtype_is_refused() -> None:
    model, weights = create(MODULES["tanh"], 0, torch.float32)
    bound = BoundModule(model, weights, TASK, torch.float32, plain=True, recording=StepRecording((5,), interprets=True))
    x, y = torch.randn(5, 6), torch.arange(5) % 4
    with torch.no_grad():
        bound.record([x], [y], [5])
        for other in (x[:, :3], x.double(), x[:, :, None]):
            with pytest.raises(RuntimeError, match="recorded for x"):
                bound.differentiate(other, y, None, -0.1)


def test_batches_need_not_be_contiguous() -> None:
    model, weights = create(MODULES["tanh"], 0, torch.float32)
    x, y = torch.randn(6, 5).t(), torch.arange(5) % 4
    made = []
    for one in (x, x.contiguous()):
        bound = BoundModule(
            model, weights, TASK, torch.float32, plain=True, recording=StepRecording((5,), interprets=True)
        )
        bound.load(weights)
        with torch.no_grad():
            bound.record([x], [y], [5])
            bound.differentiate(one, y, None, -0.1)
        made.append(bound.weights.params)
    assert torch.equal(*made)


def test_instructions_that_make_other_numbers_than_torch_are_not_taken(
    monkeypatch: pytest.MonkeyPatch, paused: list[set[str]]
) -> None:
    def wrong(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
        lines.by_number(Code.SIGMOID, out, named["self"])

    monkeypatch.setattr(lowering, "_LOWERED", {**lowering._LOWERED, "tanh": wrong})
    got, wanted = steps("tanh", torch.float64, True)
    assert paused == [{"tanh"}]
    torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-9, atol=1e-12)


def experiment(**engine: Any) -> raysim.Experiment:
    return raysim.Experiment.model_validate(
        {"cohort": {"size": 2}, "client": {"batch_size": 4}, "engine": {"workers": 0, **engine}}
    )


def test_auto_takes_it_unless_torch_is_faster_and_says_why() -> None:
    data = dataset((6,), classes=4)
    for module in (MODULES["gelu"], BY_TORCH["cumulative sums over many places"][0]):
        assert resolve(experiment(), dataset=data, model=module).choice.trainer == "interpreted"
    large = layer(lambda: nn.Conv2d(3, 8, 9, padding=30), on_maps=True)
    choice = resolve(experiment(), dataset=data, model=large).choice
    assert choice.trainer == "recorded"
    assert "torch is faster" in choice.why
    with pytest.raises(raysim.ModelError, match="'interpreted' cannot be used: it has a convolution"):
        resolve(experiment(trainer="interpreted"), dataset=data, model=large)


def test_a_large_batch_of_few_classes_is_interpreted(paused: list[set[str]]) -> None:
    assert known(MODULES["gelu"], torch.randn(64, 6)) == StepObstacles()
    assert paused == [set()]
    got, wanted = steps("gelu", torch.float64, True, rows=64)
    torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-9, atol=1e-12)


class Recurrent(nn.Module):
    """An LSTM over so many places."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.places, self.lstm, self.b = places, nn.LSTM(6, width, batch_first=True), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.lstm(x[:, None].expand(-1, self.places, -1))[0][:, -1])
        return made


def test_long_and_wide_lstms_are_torchs() -> None:
    x = torch.randn(5, 6)
    assert known(lambda: Recurrent(8, 32), x).interpreted is None
    assert "LSTMs over 61 places" in str(known(lambda: Recurrent(61, 4), x).interpreted)
    assert "an LSTM of 43,264 weights" in str(known(lambda: Recurrent(3, 104), x).interpreted)


def test_several_threads_are_torchs() -> None:
    data = dataset((6,), classes=4)
    assert resolve(experiment(threads=2), dataset=data, model=MODULES["gelu"]).choice.trainer == "recorded"


def test_without_a_compiler_steps_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> None:
        raise compiled_c.NoLibraryError("there is no C compiler")

    monkeypatch.setattr("raysim.client.trainers.kernel.operators.library", missing)
    choice = resolve(experiment(), dataset=dataset((6,), classes=4), model=MODULES["gelu"]).choice
    assert choice.trainer == "recorded"
    assert "there is no C compiler" in choice.why


def test_a_worker_without_a_compiler_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysim.client.trainers.construction.obstacle", lambda *_: "there is no C compiler")
    model, weights = create(MODULES["gelu"], 0, torch.float32)
    choice = TrainerChoice.of_size("interpreted", 5)
    with pytest.raises(ResourceError, match=r"'interpreted' needs a C compiler.*'recorded'"):
        make(choice, model, weights, TASK, ClientSection(), "float32")


def test_a_run_that_began_with_recorded_steps_goes_on_with_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: Any) -> None:
        raise compiled_c.NoLibraryError("there is no C compiler")

    def finished(path: Path) -> dict[str, Any]:
        kept = json.loads((path / "experiment.json").read_text())["trained_by"]
        result = raysim.read(path)
        assert isinstance(result, raysim.Result)
        return {"trainer": kept["trainer"], **result.params}

    data = dataset((6,), classes=4)
    with monkeypatch.context() as there:
        there.setattr("raysim.client.trainers.kernel.operators.library", missing)
        for path, rounds in ((tmp_path / "whole", 4), (tmp_path / "parts", 2)):
            made = experiment().model_copy(update={"rounds": rounds})
            raysim.run(made, dataset=data, model=MODULES["gelu"], path=path)
    raysim.resume(tmp_path / "parts", rounds=4, dataset=data, model=MODULES["gelu"])
    whole, parts = finished(tmp_path / "whole"), finished(tmp_path / "parts")
    assert whole.pop("trainer") == parts.pop("trainer") == "recorded"
    assert whole
    assert all(np.array_equal(value, parts[name]) for name, value in whole.items())


def after(**engine: Any) -> dict[str, Tensor]:
    made = experiment(**engine).model_copy(update={"rounds": 3})
    return dict(list(raysim.rounds(made, dataset=dataset((6,), classes=4), model=Convolved))[-1].params)


class Convolved(Between):
    """A module that workers can import."""

    def __init__(self) -> None:
        super().__init__(lambda self, h: flat(self.layer(maps(h))), layer=nn.Conv2d(3, 4, 3, padding=1))


def test_chunks_of_any_size_have_the_same_bits_near_those_of_autograd() -> None:
    one, two = (after(trainer="interpreted", chunk_size=size) for size in (1, 2))
    wanted = after(trainer="one_by_one")
    for name, value in one.items():
        assert torch.equal(value, two[name])
        torch.testing.assert_close(value, wanted[name], rtol=1e-3, atol=1e-5)


@pytest.mark.ray
def test_two_workers_have_the_bits_of_this_process() -> None:
    here, there = (after(trainer="interpreted", workers=workers) for workers in (0, 2))
    assert all(torch.equal(value, there[name]) for name, value in here.items())
