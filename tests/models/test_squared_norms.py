"""Squared norms of parameter groups have the same bits with a C compiler and without, alone and beside other rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from raysim.models import squared_norms as module
from raysim.models.layout import Layout
from raysim.models.squared_norms import LANES, squared_norms
from tests.support.kernel import needs_kernel

SIZES = (0, 1, LANES - 1, LANES, LANES + 1, 5 * LANES + 7, 0, 100_003)
LAYOUT = Layout.of([(f"{place}", torch.zeros(size)) for place, size in enumerate(SIZES)])


def rows(k: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(k, LAYOUT.size, dtype=dtype, generator=torch.Generator().manual_seed(k))


def without_compiler(monkeypatch: pytest.MonkeyPatch, deltas: Tensor) -> Tensor:
    with monkeypatch.context() as patched:
        patched.setattr(module, "_code", lambda dtype: None)
        return squared_norms(LAYOUT, deltas)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squared_norms_in_c_have_the_bits_of_numpys(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_kernel()
    deltas = rows(6, dtype)
    for some in (deltas, deltas[::2], deltas[3:4]):
        assert torch.equal(squared_norms(LAYOUT, some), without_compiler(monkeypatch, some))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_squared_norms_are_sums_of_exact_squares(dtype: torch.dtype) -> None:
    deltas = rows(3, dtype)
    wanted = [
        [math.fsum(number * number for number in piece[row].tolist()) for piece in LAYOUT.pieces(deltas)]
        for row in range(3)
    ]
    torch.testing.assert_close(
        squared_norms(LAYOUT, deltas), torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_rows_that_do_not_lie_number_behind_number_are_measured_too() -> None:
    needs_kernel()
    deltas = rows(3, torch.float32)
    assert torch.equal(squared_norms(LAYOUT, deltas.t().contiguous().t()), squared_norms(LAYOUT, deltas))


def test_numbers_between_groups_do_not_count() -> None:
    deltas = torch.full((2, LAYOUT.size), torch.nan)
    for piece in LAYOUT.pieces(deltas):
        piece.fill_(2.0)
    assert squared_norms(LAYOUT, deltas).tolist() == [[4.0 * size for size in SIZES]] * 2


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("number", [torch.inf, -torch.inf, torch.nan])
def test_a_group_that_is_not_finite_shows(compiled: bool, number: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled:
        needs_kernel()
    deltas = torch.ones(2, LAYOUT.size)
    LAYOUT.pieces(deltas)[4][1, -1] = number
    found = squared_norms(LAYOUT, deltas) if compiled else without_compiler(monkeypatch, deltas)
    assert found.isfinite().tolist() == [[True] * 8, [place != 4 for place in range(8)]]
