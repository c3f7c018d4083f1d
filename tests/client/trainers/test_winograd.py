"""Convolutions by minimal filtering: torch's numbers, on maps of any size, layout and margin, and any processor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from raysim.client.trainers.kernel.winograd import Winograd, _Filtered, gains
from tests.support.kernel import PROCESSORS, compiled_for, needs_kernel
from tests.support.lying import as_it_is, last, part

CONTIGUOUS, LAST = torch.contiguous_format, torch.channels_last
_backward = torch.ops.aten.convolution_backward

SHAPES = (
    # examples, channels before and behind, rows, columns, a kernel's side, margins
    (1, 1, 1, 3, 3, 3, (0, 0)),
    (2, 3, 5, 7, 9, 3, (1, 1)),
    (3, 17, 33, 6, 5, 3, (0, 2)),
    (5, 16, 16, 1, 4, 3, (1, 0)),
    (4, 40, 24, 9, 9, 3, (2, 1)),
    (2, 1, 2, 5, 9, 5, (0, 0)),
    (3, 17, 33, 6, 9, 5, (2, 1)),
    # Several blocks of channels, and several of tiles in an example, or of examples.
    (3, 130, 70, 3, 3, 3, (1, 1)),
    (3, 70, 130, 4, 4, 5, (2, 2)),
    (23, 64, 16, 4, 4, 3, (1, 1)),
    (30, 40, 24, 6, 6, 3, (1, 1)),
    (60, 70, 16, 4, 4, 3, (1, 1)),
    (23, 64, 16, 4, 4, 5, (2, 2)),
    (2, 8, 8, 40, 38, 3, (1, 1)),
    (2, 8, 8, 40, 38, 5, (4, 3)),
)


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


def drawn(shape: tuple[Any, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Maps, kernels, bias and the gradient of the maps behind."""
    n, into, out, height, width, taps, (above, left) = shape
    draw = torch.Generator().manual_seed(0)
    behind = height + 2 * above - taps + 1, width + 2 * left - taps + 1
    sizes = (n, into, height, width), (out, into, taps, taps), (out,), (n, out, *behind)
    x, w, b, dy = (torch.randn(size, dtype=dtype, generator=draw) for size in sizes)
    return x, w, b, dy


def torchs(given: Iterable[Tensor], padding: tuple[int, int]) -> tuple[Tensor, ...]:
    x, w, b, dy = given
    y = functional.conv2d(x, w, b, padding=padding)
    how = [1, 1], list(padding), [1, 1], False, [0, 0], 1, [True] * 3
    return (y, *_backward(dy, x, w, [len(b)], *how))


def filtered(
    by: Winograd, given: Iterable[Tensor], padding: tuple[int, int], layout: torch.memory_format
) -> tuple[Tensor | None, ...]:
    x, w, b, dy = given
    y = by.convolution(x, w, b, padding, layout)
    return (y, *by.gradients(dy, x, w, padding, [True] * 3, layout))


def test_shapes_have_tiles_of_each_size() -> None:
    """As one block and as several, with channels of one block and of several."""
    plans = [numbers(shape) for shape in SHAPES]
    kinds = {(taps, tile) for *_, taps, _, tile, _, _ in plans}
    assert kinds == {(3, 3), (3, 4), (5, 2)}
    for kind in kinds:
        of = {
            (n > together, channels > 32)
            for n, channels, *_, taps, _, tile, _, together in plans
            if (taps, tile) == kind
        }
        assert {several for several, _ in of} == {False, True}
    assert {
        (several, wide) for n, wide, several in ((plan[0], plan[1] > 32, plan[0] > plan[-1]) for plan in plans)
    } == {(False, False), (False, True), (True, False), (True, True)}


def numbers(shape: tuple[Any, ...]) -> tuple[int, ...]:
    """`Shape` of winograd.c."""
    n, into, out, height, width, taps, padding = shape
    return _Filtered((n, into, height, width), out, taps, padding).numbers(4)


@pytest.mark.parametrize("layout", [CONTIGUOUS, LAST], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("lying", [as_it_is, last, part])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_numbers_are_torchs(
    shape: tuple[Any, ...], lying: Callable[[Tensor], Tensor], layout: torch.memory_format
) -> None:
    x, w, b, dy = drawn(shape, torch.float64)
    got = filtered(Winograd(torch.float64), (lying(x), lying(w), b, lying(dy)), shape[-1], layout)
    for one, wanted in zip(got, torchs((x, w, b, dy), shape[-1]), strict=True):
        assert one is not None
        torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12)
    y, dx, dw, _ = got
    assert y is not None
    assert dx is not None
    assert dw is not None
    assert y.is_contiguous(memory_format=layout)
    assert dx.is_contiguous(memory_format=layout)
    assert dw.is_contiguous()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float32_loses_at_most_three_bits_more_than_torch(shape: tuple[Any, ...]) -> None:
    """As tiles of these sizes do, by their numbers' sizes (docs/performance.md says how much)."""
    tensors = drawn(shape, torch.float32)
    got = filtered(Winograd(torch.float32), tensors, shape[-1], CONTIGUOUS)
    exact = torchs((one.double() for one in tensors), shape[-1])
    for one, torch_made, wanted in zip(got, torchs(tensors, shape[-1]), exact, strict=True):
        assert one is not None
        own, other = ((made.double() - wanted).norm() / wanted.norm() for made in (one, torch_made))
        assert own < 6 * other + 3e-7


@pytest.mark.parametrize("processor", PROCESSORS)
def test_other_processors_compute_the_same(processor: str, tmp_path: Path) -> None:
    with compiled_for(processor, tmp_path):
        by = Winograd(torch.float64)
        for shape in SHAPES:
            tensors = drawn(shape, torch.float64)
            for layout in (CONTIGUOUS, LAST):
                got = filtered(by, tensors, shape[-1], layout)
                for one, wanted in zip(got, torchs(tensors, shape[-1]), strict=True):
                    torch.testing.assert_close(one, wanted, rtol=1e-12, atol=1e-12)


def test_wide_and_narrow_vectors_have_the_same_bits(tmp_path: Path) -> None:
    def bits() -> list[Tensor | None]:
        by = Winograd(torch.float32)
        return [one for shape in SHAPES for one in filtered(by, drawn(shape, torch.float32), shape[-1], CONTIGUOUS)]

    here = bits()
    with compiled_for("haswell", tmp_path):
        for one, other in zip(bits(), here, strict=True):
            assert one is not None
            assert other is not None
            assert torch.equal(one, other)


def test_the_bits_depend_on_nothing_before() -> None:
    """Nor on where operands lie, nor on what memory held."""
    shape = SHAPES[3]
    tensors = drawn(shape, torch.float32)
    alone = filtered(Winograd(torch.float32), tensors, shape[-1], CONTIGUOUS)
    by = Winograd(torch.float32)
    for other in reversed(SHAPES):
        filtered(by, drawn(other, torch.float32), other[-1], LAST)
        by._room.fill_(torch.nan)
        elsewhere = [torch.cat([torch.zeros(3), one.flatten()])[3:].view(one.shape) for one in tensors]
        for one, wanted in zip(filtered(by, elsewhere, shape[-1], CONTIGUOUS), alone, strict=True):
            assert one is not None
            assert wanted is not None
            assert torch.equal(one, wanted)


def test_only_what_is_wanted_is_made() -> None:
    shape = SHAPES[1]
    x, w, _, dy = drawn(shape, torch.float32)
    by = Winograd(torch.float32)
    for wanted in ([True, False, False], [False, True, False], [False, False, True]):
        made = by.gradients(dy, x, w, shape[-1], wanted, CONTIGUOUS)
        assert [one is not None for one in made] == wanted


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x, w, b: (x.double(), w, b), "maps of shape"),
        (lambda x, w, b: (x._neg_view(), w, b), "maps of shape"),
        (lambda x, w, b: (x[:, :2], w, b), "kernels of shape"),
        (lambda x, w, b: (x, w[..., :2], b), "kernels of shape"),
        (lambda x, w, b: (x, w[..., :2, :2], b), r"kernels of shape \(5, 3, 3, 3\)"),
        (lambda x, w, b: (x, w, b[:2]), "bias of shape"),
        (lambda x, w, b: (x[0], w, b), "four axes"),
        (lambda x, w, b: (x[:0], w, b), "leave none behind"),
    ],
)
def test_what_does_not_fit_is_refused(change: Callable[..., tuple[Tensor, Tensor, Tensor]], why: str) -> None:
    x, w, b, _ = drawn(SHAPES[1], torch.float32)
    x, w, b = change(x, w, b)
    with pytest.raises(RuntimeError, match=why):
        Winograd(torch.float32).convolution(x, w, b, (1, 1), CONTIGUOUS)


def test_gradients_of_another_shape_are_refused() -> None:
    x, w, _, dy = drawn(SHAPES[1], torch.float32)
    with pytest.raises(RuntimeError, match="gradients of shape"):
        Winograd(torch.float32).gradients(dy[:, :, 1:], x, w, (1, 1), [True] * 3, CONTIGUOUS)
    for padding in ((3, 0), (-1, 0), (1,)):
        with pytest.raises(RuntimeError, match="leave none behind"):
            Winograd(torch.float32).convolution(x, w, None, padding, CONTIGUOUS)


@pytest.mark.parametrize(
    ("x", "w", "padding", "is_faster"),
    [
        ((20, 64, 24, 24), (64, 64, 3, 3), (1, 1), True),
        ((20, 32, 26, 26), (64, 32, 3, 3), (0, 0), True),
        ((20, 3, 24, 24), (64, 3, 3, 3), (1, 1), False),
        ((20, 64, 24, 24), (64, 64, 5, 3), (1, 1), False),
        ((20, 64, 24, 24), (64, 64, 7, 7), (1, 1), False),
        ((10, 32, 14, 14), (64, 32, 5, 5), (2, 2), True),
        ((10, 6, 12, 12), (16, 6, 5, 5), (0, 0), False),
        ((10, 1, 28, 28), (32, 1, 5, 5), (2, 2), False),
        ((1, 128, 4, 4), (128, 128, 5, 5), (2, 2), False),
        ((20, 64, 24), (64, 64, 3), (1,), False),
        ((20, 512, 3, 3), (512, 512, 3, 3), (1, 1), True),
        ((4, 256, 4, 4), (256, 256, 3, 3), (1, 1), False),
        ((4, 256, 6, 6), (256, 256, 3, 3), (1, 1), True),
        ((20, 64, 1, 1), (64, 64, 3, 3), (0, 0), False),
        ((20, 64, 24, 24), (64, 64, 3, 3), (3, 3), False),
    ],
)
def test_where_it_gains(x: tuple[int, ...], w: tuple[int, ...], padding: tuple[int, ...], is_faster: bool) -> None:
    assert gains(x, w, padding) == is_faster


def check_blank(kernel: Winograd, shape: tuple[Any, ...], dtype: torch.dtype) -> None:
    x, w, b, dy = drawn(shape, dtype)
    padding = shape[-1]
    x[:, :, x.shape[2] // 3 :] = 0
    x[0, :, :, x.shape[3] // 2 :] = -0.0
    # Other channels show that a place is filled.
    x[:, :4, 0] *= x.shape[1] <= 4
    seen = functional.conv2d((x != 0).to(dtype), torch.ones_like(w), padding=padding)[:, :1] > 0.5
    for bias in (b, torch.zeros_like(b), None):
        y = kernel.convolution(x, w, bias, padding, CONTIGUOUS)
        expected = (torch.zeros_like(b) if bias is None else bias).view(1, -1, 1, 1).expand_as(y)
        assert torch.equal(torch.where(seen, 0, y), torch.where(seen, 0, expected))
        torch.testing.assert_close(y, functional.conv2d(x, w, bias, padding=padding), rtol=1e-4, atol=1e-3)
    dx, *_ = kernel.gradients(torch.zeros_like(dy), x, w, padding, [True, False, False], LAST)
    assert dx is not None
    assert not dx.any()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_a_kernel_sees_zeros_alone_the_bias_stays_as_it_is(shape: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Without a bias a relu behind it passes what is above 0, also if that is rounding alone."""
    check_blank(Winograd(dtype), shape, dtype)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_so_it_is_on_any_processor(processor: str, tmp_path: Path) -> None:
    with compiled_for(processor, tmp_path):
        for dtype in (torch.float32, torch.float64):
            kernel = Winograd(dtype)
            for shape in SHAPES:
                check_blank(kernel, shape, dtype)
