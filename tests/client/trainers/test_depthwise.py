"""The gradient of depthwise kernels in C: torch's numbers, on maps of any size and layout, and any processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.kernel.depthwise import Depthwise, gains, gains_much, is_depthwise
from raysim.client.trainers.kernel.kernels import Kernels
from raysim.client.trainers.recording import channels_last
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.kernel import PROCESSORS, compiled_for, needs_kernel
from tests.support.lying import as_it_is, last, part

_backward = torch.ops.aten.convolution_backward.default

SHAPES = (
    # examples, channels, rows and columns, kernel, stride, padding, dilation
    (1, 2, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    (3, 5, (7, 9), (5, 5), (1, 1), (2, 2), (1, 1)),
    (2, 17, (6, 5), (3, 4), (1, 2), (0, 3), (1, 1)),
    (4, 16, (8, 8), (7, 7), (1, 1), (3, 3), (1, 1)),
    (5, 40, (9, 11), (5, 3), (2, 1), (1, 4), (2, 3)),
    (2, 33, (1, 40), (1, 31), (1, 1), (0, 15), (1, 1)),
    (2, 8, (1, 30), (1, 8), (1, 3), (0, 0), (1, 2)),
    # Rows that no kernel reaches.
    (2, 9, (10, 10), (2, 5), (4, 5), (0, 0), (1, 1)),
)


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


def drawn(shape: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the maps behind, maps and kernels."""
    n, channels, size, kernel, stride, padding, dilation = shape
    draw = torch.Generator().manual_seed(0)
    x, w = (torch.randn(one, dtype=dtype, generator=draw) for one in ((n, channels, *size), (channels, 1, *kernel)))
    y = functional.conv2d(x, w, None, stride, padding, dilation, channels)
    return torch.randn(y.shape, dtype=dtype, generator=draw), x, w


def torchs(given: tuple[Tensor, ...], shape: Any) -> Tensor:
    dy, x, w = given
    how = (*(list(one) for one in shape[-3:]), False, [0, 0], len(w))
    return cast(Tensor, _backward(dy, x, w, None, *how, [False, True, False])[1])


def own(by: Depthwise, given: tuple[Tensor, ...], shape: Any) -> Tensor:
    dy, x, w = given
    return by.kernels_gradient(dy, x, w.shape, *shape[-3:])


@pytest.mark.parametrize("lying", [as_it_is, last, part])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_numbers_are_torchs(shape: Any, lying: Callable[[Tensor], Tensor]) -> None:
    dy, x, w = drawn(shape, torch.float64)
    got = own(Depthwise(torch.float64), (lying(dy), lying(x), w), shape)
    torch.testing.assert_close(got, torchs((dy, x, w), shape), rtol=1e-12, atol=1e-12)
    assert got.is_contiguous()


def test_float32_is_about_as_precise_as_torch() -> None:
    for shape in SHAPES:
        given = drawn(shape, torch.float32)
        exact = torchs(tuple(one.double() for one in given), shape)
        made = own(Depthwise(torch.float32), given, shape), torchs(given, shape)
        ours, theirs = ((one.double() - exact).norm() / exact.norm() for one in made)
        assert ours < 3 * theirs + 3e-7


@pytest.mark.parametrize("processor", PROCESSORS)
def test_other_processors_compute_the_same(processor: str, tmp_path: Path) -> None:
    with compiled_for(processor, tmp_path):
        by = Depthwise(torch.float64)
        for shape in SHAPES:
            given = drawn(shape, torch.float64)
            torch.testing.assert_close(own(by, given, shape), torchs(given, shape), rtol=1e-12, atol=1e-12)


def test_wide_and_narrow_vectors_have_the_same_bits(tmp_path: Path) -> None:
    def bits() -> list[Tensor]:
        by = Depthwise(torch.float32)
        return [own(by, drawn(shape, torch.float32), shape) for shape in SHAPES]

    here = bits()
    with compiled_for("haswell", tmp_path):
        assert all(map(torch.equal, bits(), here))


def test_the_bits_depend_on_nothing_before() -> None:
    """Nor on where operands lie and in what order, nor on what memory held."""
    shape = SHAPES[4]
    given = drawn(shape, torch.float32)
    alone = own(Depthwise(torch.float32), given, shape)
    by = Depthwise(torch.float32)
    for other in reversed(SHAPES):
        own(by, drawn(other, torch.float32), other)
        by._room.fill_(torch.nan)
        for lying in (as_it_is, last, part):
            dy, x, w = given
            assert torch.equal(own(by, (lying(dy), lying(x), w), shape), alone)


def test_what_is_no_number_stays_none() -> None:
    dy, x, w = drawn(SHAPES[3], torch.float32)
    x[1, 3, 4, 4] = torch.nan
    found = own(Depthwise(torch.float32), (dy, x, w), SHAPES[3]).isnan().flatten(1)
    assert found[3].all()
    assert not found[[*range(3), *range(4, 16)]].any()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda dy, x, w: (dy, x.double(), w), "maps of shape"),
        (lambda dy, x, w: (dy, x._neg_view(), w), "maps of shape"),
        (lambda dy, x, w: (dy[:, :, 1:], x, w), "gradients of shape"),
        (lambda dy, x, w: (dy, x[:, :2], w), "a kernel for each channel"),
        (lambda dy, x, w: (dy, x[0], w), "a kernel for each channel"),
        (lambda dy, x, w: (dy, x, w.expand(-1, 2, -1, -1)), "a kernel for each channel"),
        (lambda dy, x, w: (dy[:0], x[:0], w), "a kernel for each channel"),
        (lambda dy, x, w: (dy, x[:, :, :1, :2], w.new_zeros(5, 1, 9, 9)), "smaller than the kernels"),
    ],
)
def test_what_does_not_fit_is_refused(change: Callable[..., tuple[Tensor, Tensor, Tensor]], why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        own(Depthwise(torch.float32), change(*drawn(SHAPES[1], torch.float32)), SHAPES[1])


@pytest.mark.parametrize("moves", [((0, 1), (2, 2), (1, 1)), ((1, 1), (-1, 2), (1, 1)), ((1, 1), (2, 2), (1,))])
def test_moves_that_are_none_are_refused(moves: Any) -> None:
    with pytest.raises(RuntimeError, match="a kernel for each channel"):
        own(Depthwise(torch.float32), drawn(SHAPES[1], torch.float32), (*SHAPES[1][:4], *moves))


@pytest.mark.parametrize(
    ("w", "groups", "is_one", "is_much_faster"),
    [
        ((48, 1, 7, 7), 48, True, True),
        ((48, 1, 31), 48, True, True),
        ((48, 1, 3), 48, True, True),
        ((48, 1, 3, 3), 48, True, False),
        # Two outputs for each channel; all channels together; one channel alone; over three axes.
        ((96, 1, 5, 5), 48, False, False),
        ((48, 48, 5, 5), 1, False, False),
        ((1, 1, 5, 5), 1, False, False),
        ((48, 1, 5, 5, 5), 48, False, False),
    ],
)
def test_which_are_depthwise(w: tuple[int, ...], groups: int, is_one: bool, is_much_faster: bool) -> None:
    assert is_depthwise(w, groups) == is_one
    assert gains_much(w, groups) == is_much_faster


def test_kernels_of_3_x_3_gain_unless_maps_lie_channels_last() -> None:
    x = torch.zeros(2, 6, 8, 8)
    assert gains(x, (6, 1, 3, 3))
    assert not gains(last(x), (6, 1, 3, 3))
    assert gains(last(x), (6, 1, 5, 5))
    assert gains(x[:, :, 0], (6, 1, 3))


class OfMaps(nn.Module):
    """Depthwise convolutions over two axes and over one, and others, from 3 x 8 x 8 numbers to 4 outputs."""

    def __init__(self, has_bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 1)
        self.wide = nn.Conv2d(6, 6, 5, padding=2, groups=6, bias=has_bias)
        self.usual = nn.Conv2d(6, 6, 3, 2, 1, groups=6, bias=has_bias)
        self.line = nn.Conv1d(6, 6, 7, padding=6, dilation=2, groups=6, bias=has_bias)
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x.view(len(x), 3, 8, 8)))
        h = h + torch.tanh(self.wide(h))
        return cast(Tensor, self.out(self.line(self.usual(h).flatten(2)).mean(2)))


class Counted(Depthwise):
    """Notes the kernels whose gradients are made."""

    def __init__(self) -> None:
        super().__init__(torch.float64)
        self.kernels: list[tuple[int, ...]] = []

    def kernels_gradient(self, dy: Tensor, x: Tensor, w: Any, *moves: Any) -> Tensor:
        self.kernels.append(tuple(w[2:]))
        return super().kernels_gradient(dy, x, w, *moves)


def bound_to(model: Any, weights: Any, recording: StepRecording, plain: bool) -> BoundModule:
    made = BoundModule(model, weights, task_for(4, None), torch.float64, plain=plain, recording=recording)
    made.load(weights)
    return made


class Turned(nn.Module):
    """A depthwise convolution that is transposed, whose kernels have the shape of one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.out = nn.ConvTranspose2d(3, 3, 5, stride=2, groups=3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.out(torch.tanh(self.up(x.view(len(x), 3, 8, 8))).mean((2, 3))))


def test_a_transposed_convolution_is_torchs() -> None:
    model, weights = create(Turned, 0, torch.float64)
    by = Counted()
    recording = StepRecording((4,), kernels=Kernels(depthwise=by))
    got, wanted = (bound_to(model, weights, one, True) for one in (recording, StepRecording()))
    x, y = torch.randn(4, 3 * 8 * 8, dtype=torch.float64), torch.arange(4)
    assert got.record([x], [y], [4])
    for bound in (got, wanted):
        with torch.no_grad():
            bound.differentiate(x, y, None, -0.1)
    torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-10, atol=1e-12)
    assert not by.kernels


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("lies_last", [True, False])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("interprets", [True, False])
def test_recorded_steps_are_autograds(
    interprets: bool, plain: bool, lies_last: bool, has_bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels_last, "MOST_COPIED", 100.0)
    monkeypatch.setattr(channels_last, "LEAST_BY_CHANNEL", 1 if lies_last else 1_000)
    model, weights = create(lambda: OfMaps(has_bias), 0, torch.float64)
    by = Counted()
    # 60 examples: too many for the interpreter's own instructions.
    recording = StepRecording((60,), interprets=interprets, kernels=Kernels(depthwise=by))
    got, wanted = (bound_to(model, weights, one, plain) for one in (recording, StepRecording()))
    x, y = torch.randn(60, 3 * 8 * 8, dtype=torch.float64), torch.arange(60) % 4
    assert got.record([x], [y], [60])
    by.kernels.clear()
    for batch in (x, x.flip(0)):
        for bound in (got, wanted):
            with torch.no_grad():
                bound.differentiate(batch, y, None, -0.1 if plain else 1.0)
        torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-10, atol=1e-12)
    assert not torch.equal(got.gradient, weights.params)
    assert (5, 5) in by.kernels
    # Torch is faster at maps that lie channels last, and the interpreter at few numbers.
    assert ((3, 3) in by.kernels) == (not lies_last and not interprets)
