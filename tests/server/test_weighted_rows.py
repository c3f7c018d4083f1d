"""Weighted rows are added up to the bits of single steps, with a C compiler and without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raysim.arrays import Float64s
from raysim.server import weighted_rows
from raysim.server.weighted_rows import PIECE, add_rows, sum_of_rows
from raysim.storage import compiled_c
from tests.support.kernel import needs_kernel

TYPES = [
    (torch.float32, torch.float64),
    (torch.float64, torch.float64),
    (torch.float32, torch.float32),
]


def numbers(k: int, length: int, dtype: torch.dtype) -> tuple[Float64s, Tensor]:
    generator = torch.Generator().manual_seed(length)
    rows = torch.randn(k, length, generator=generator, dtype=torch.float64).to(dtype)
    rows[:, ::3] = -0.0
    return torch.randn(k, generator=generator, dtype=torch.float64).numpy(), rows


def step_by_step(total: Tensor, coefficients: Float64s, rows: Tensor) -> Tensor:
    for c, row in zip(coefficients.tolist(), rows, strict=True):
        total = total + row.to(total.dtype) * torch.tensor(c, dtype=total.dtype)
    return total


def same_bits(a: Tensor, b: Tensor) -> bool:
    # As integers: 0 and -0 differ.
    as_integers = torch.int64 if a.dtype is torch.float64 else torch.int32
    return torch.equal(a.view(as_integers), b.view(as_integers))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("of_rows", "of_total"), TYPES)
@pytest.mark.parametrize(
    ("k", "length"), [(1, 513), (1, PIECE + 5), (2, 1), (3, 511), (5, 513), (64, 610), (2, 2 * PIECE + 5)]
)
def test_rows_are_added_one_after_another(
    compiled: bool, of_rows: torch.dtype, of_total: torch.dtype, k: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        needs_kernel()
    else:
        monkeypatch.setattr(compiled_c, "obstacle", lambda source, dtype: "it is not asked for")
    coefficients, rows = numbers(k, length, of_rows)
    total = torch.linspace(-1, 1, length, dtype=of_total)
    wanted = step_by_step(total, coefficients, rows)
    # Every second row of a stack: rows need not lie behind each other.
    add_rows(total, coefficients, rows.repeat_interleave(2, 0)[::2])
    assert same_bits(total, wanted)
    zeros = torch.zeros(length, dtype=torch.float64)
    assert same_bits(sum_of_rows(coefficients, rows), step_by_step(zeros, coefficients, rows))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (1, 4), (2, 3), (4, 1)], ids=str)
def test_the_bits_do_not_depend_on_how_many_rows_are_added_at_a_time(sizes: tuple[int, ...]) -> None:
    coefficients, rows = numbers(5, 700, torch.float32)
    total, first = None, 0
    for size in sizes:
        these = slice(first, first + size)
        if total is None:
            total = sum_of_rows(coefficients[these], rows[these])
        else:
            add_rows(total, coefficients[these], rows[these])
        first += size
    assert total is not None
    assert same_bits(total, sum_of_rows(coefficients, rows))


def test_numbers_beside_the_sum_are_left_alone() -> None:
    coefficients, rows = numbers(3, 700, torch.float32)
    room = torch.zeros(704, dtype=torch.float64)
    add_rows(room[2:702], coefficients, rows)
    assert room[[0, 1, 702, 703]].tolist() == [0.0] * 4
    assert same_bits(room[2:702], step_by_step(torch.zeros(700, dtype=torch.float64), coefficients, rows))


@pytest.mark.parametrize("rows_at_a_time", [1, 2, 5])
def test_blocks_of_rows_are_as_good_as_all_at_once_on_a_card(
    rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    coefficients, rows = numbers(5, 7, torch.float32)
    total, wanted = (torch.ones(7, dtype=torch.float64) for _ in range(2))
    monkeypatch.setattr(weighted_rows, "BLOCK", 7 * rows_at_a_time)
    weighted_rows._on_a_card(total, coefficients, rows)
    torch.testing.assert_close(total, step_by_step(wanted, coefficients, rows), rtol=1e-14, atol=1e-14)
