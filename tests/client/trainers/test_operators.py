"""The compiled interpreter by itself: products, functions of a number, and the places of its memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from raysim.client.trainers.kernel.operators import Code, Instruction, Interpreter, Operand
from raysim.client.trainers.recording.instruction_list import _shared_places


def run(instructions: list[Instruction], tensors: list[Tensor], alpha: float = 1.0) -> bool:
    return Interpreter(instructions, [one.data_ptr() for one in tensors], tensors[0].dtype)([], alpha)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=150, deadline=None)
@given(
    m=st.integers(1, 40),
    k=st.integers(1, 70),
    n=st.integers(1, 70),
    turned=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    beta=st.sampled_from([0.0, 1.0, 0.5]),
)
def test_products_of_any_shape_and_layout(
    dtype: torch.dtype, m: int, k: int, n: int, turned: tuple[bool, bool, bool], beta: float
) -> None:
    def matrix(rows: int, columns: int, is_turned: bool) -> Tensor:
        return torch.randn(columns, rows, dtype=dtype).t() if is_turned else torch.randn(rows, columns, dtype=dtype)

    out, a, b = (matrix(r, c, t) for (r, c), t in zip([(m, n), (m, k), (k, n)], turned, strict=True))
    wanted = beta * out.double() + 0.5 * a.double() @ b.double()
    operands = (
        Operand(0, 0, (0, out.stride(0), 0, out.stride(1))),
        Operand(1, 0, (0, *a.stride(), 0)),
        Operand(2, 0, (0, 0, *b.stride())),
    )
    assert run([Instruction(Code.PRODUCT, (1, m, k, n), operands, 0.25, beta, by_alpha=True)], [out, a, b], 2.0)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("code", "function", "p"),
    [
        (Code.EXPONENTIAL, torch.exp, 0.0),
        (Code.TANGENT, torch.tanh, 0.0),
        (Code.SIGMOID, torch.sigmoid, 0.0),
        (Code.GELU, functional.gelu, 0.0),
        (Code.SILU, functional.silu, 0.0),
        (Code.ELU, functional.elu, 1.0),
        (Code.SOFTPLUS, lambda x: functional.softplus(x, threshold=math.inf), math.inf),
        (Code.MISH, functional.mish, 0.0),
        (Code.GELU_TANH, lambda x: functional.gelu(x, approximate="tanh"), 0.0),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_functions_are_exact_to_a_few_units_in_the_last_place(
    code: Code, function: Callable[[Tensor], Tensor], p: float, dtype: torch.dtype
) -> None:
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 88.0, -88.0, 700.0, -700.0, 1e-30, -1e-30], dtype=dtype)
    x = torch.cat([torch.linspace(-30, 30, 40_001, dtype=dtype), torch.linspace(-1, 1, 10_001, dtype=dtype), ends])
    got, wanted = torch.empty_like(x), function(x.double())
    line = Operand(1, 0, (1,))
    assert run([Instruction(code, x.shape, (Operand(0, 0, (1,)), line, line), p, 1.0)], [got, x])
    unit = torch.finfo(dtype).eps
    # gelu's left tail is a difference of numbers near 1 in torch.
    torch.testing.assert_close(got.double(), wanted.to(dtype).double(), rtol=8 * unit, atol=8 * unit, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_not_a_number_stays_that(dtype: torch.dtype) -> None:
    x = torch.tensor([torch.nan, 1.0, -1.0], dtype=dtype)
    for code in (Code.RELU, Code.CLAMP, Code.ABSOLUTE, Code.LEAKY_RELU):
        got = torch.empty_like(x)
        operands = tuple(Operand(base, 0, (1,)) for base in (0, 1, 1))
        assert run([Instruction(code, x.shape, operands, -2.0, 2.0)], [got, x])
        assert got.isnan().tolist() == [True, False, False]


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    uses=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=12),
)
def test_pieces_of_memory_share_places_only_where_their_uses_lie_apart(sizes: list[int], uses: list[list[int]]) -> None:
    instructions = [
        Instruction(Code.COPY, (1,), tuple(Operand(base % len(sizes), 0, (1,)) for base in bases)) for bases in uses
    ]
    places, end = _shared_places(instructions, sizes)
    used: dict[int, list[int]] = {}
    for at, instruction in enumerate(instructions):
        for operand in instruction.operands:
            assert operand is not None
            used.setdefault(operand.base, []).append(at)
    for base, times in used.items():
        assert places[base] + sizes[base] <= end
        for other, others in used.items():
            if other != base and max(times[0], others[0]) <= min(times[-1], others[-1]):
                apart = places[base] + sizes[base] <= places[other] or places[other] + sizes[other] <= places[base]
                assert apart or not sizes[base] or not sizes[other]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("code", "function"), [(Code.SOFTMAX, torch.softmax), (Code.LOG_SOFTMAX, torch.log_softmax)])
@pytest.mark.parametrize("n", [1, 31, 63, 64, 101])
def test_softmaxes_of_rows_with_their_largest_number_anywhere(
    code: Code, function: Callable[[Tensor, int], Tensor], n: int, dtype: torch.dtype
) -> None:
    rows = torch.randn(n + 3, n, dtype=dtype)
    # In which place the largest number is, and by how much, decides whether any number overflows.
    rows[range(n), range(n)] = 200.0
    rows[n, -1], rows[n + 1, 0], rows[n + 2] = math.nan, math.nan, -math.inf
    out = torch.zeros_like(rows)
    operands = Operand(0, 0, (n, 1)), Operand(1, 0, (n, 1))
    assert run([Instruction(code, (n + 3, n), operands)], [out, rows])
    torch.testing.assert_close(out, function(rows, 1), rtol=1e-5, atol=1e-6, equal_nan=True)
