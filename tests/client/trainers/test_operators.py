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

from raysim.client.trainers.kernel.operators import Code, Instruction, Interpreter, Operand, packed
from raysim.client.trainers.recording.instruction_list import NO_INDEX, _shared_places


def run(instructions: list[Instruction], tensors: list[Tensor], alpha: float = 1.0) -> bool:
    return Interpreter(packed(instructions), [one.data_ptr() for one in tensors], tensors[0].dtype)([], alpha)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=150, deadline=None)
@given(
    m=st.integers(1, 40) | st.integers(60, 140),
    k=st.integers(1, 70),
    n=st.integers(1, 70),
    turned=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    far=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    added=st.sampled_from(["to itself", "a row", "a column", "a matrix"]),
    beta=st.sampled_from([0.0, 1.0, 0.5]),
)
def test_products_of_any_shape_and_layout(
    dtype: torch.dtype,
    m: int,
    k: int,
    n: int,
    turned: tuple[bool, bool, bool],
    far: tuple[bool, bool, bool],
    added: str,
    beta: float,
) -> None:
    def matrix(rows: int, columns: int, is_turned: bool, is_far: bool) -> Tensor:
        if is_turned:
            return matrix(columns, rows, False, is_far).t()
        # Rows that lie far apart are laid out anew where many read them.
        return torch.randn(rows, columns + 300 * is_far, dtype=dtype)[:, :columns]

    out, a, b = (matrix(*size, t, f) for size, t, f in zip([(m, n), (m, k), (k, n)], turned, far, strict=True))
    given = {"a row": (1, n), "a column": (m, 1), "a matrix": (m, n)}.get(added)
    c = out if given is None else torch.randn(given, dtype=dtype).expand(m, n)
    wanted = beta * c.double() + 0.5 * a.double() @ b.double()
    operands = [
        Operand(0, 0, (0, out.stride(0), 0, out.stride(1))),
        Operand(1, 0, (0, *a.stride(), 0)),
        Operand(2, 0, (0, 0, *b.stride())),
        *([] if c is out else [Operand(3, 0, (0, c.stride(0), 0, c.stride(1)))]),
    ]
    one = Instruction(Code.PRODUCT, (1, m, k, n), tuple(operands), 0.25, beta, by_alpha=True)
    around = out if out._base is None else out._base
    before = around.clone()
    assert run([one], [out, a, b, c], 2.0)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)
    out.copy_(before.as_strided(out.shape, out.stride()))
    assert torch.equal(around, before), "numbers that are not its own"


@pytest.mark.parametrize("shape", [(40, 64, 96), (97, 80, 33), (200, 70, 65), (64, 65, 300)], ids=str)
def test_where_numbers_lie_does_not_change_the_bits_of_a_product(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b, made = torch.randn(m, k), torch.randn(k, n), []
    for turned in (False, True):
        for apart in (0, 300):
            # Turned, a's columns are contiguous, and far apart.
            left = torch.zeros(k, m + apart).t()[:m] if turned else torch.zeros(m, k + apart)[:, :k]
            right, out = torch.zeros(k, n + apart)[:, :n], torch.zeros(m, n)
            left.copy_(a), right.copy_(b)
            operands = Operand(0, 0, (0, n, 0, 1)), Operand(1, 0, (0, *left.stride(), 0))
            one = Instruction(Code.PRODUCT, (1, m, k, n), (*operands, Operand(2, 0, (0, 0, *right.stride()))), 1.0)
            assert run([one], [out, left, right])
            made.append(out)
    assert all(torch.equal(one, made[0]) for one in made)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_copies_of_rows_of_any_length_leave_what_is_between_them(dtype: torch.dtype) -> None:
    for n in range(1, 70):
        a, whole = torch.randn(3, 5, n, dtype=dtype).transpose(0, 1), torch.randn(5, 3, n + 2, dtype=dtype)
        out, before = whole[..., :n], whole[..., n:].clone()
        operands = Operand(0, 0, out.stride()), Operand(1, 0, a.stride()), Operand(0, 0, out.stride())
        assert run([Instruction(Code.COPY, (5, 3, n), operands)], [whole, a])
        assert torch.equal(out, a), n
        assert torch.equal(whole[..., n:], before), n


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bits_of_a_column_are_the_same_whatever_columns_are_beside_it(dtype: torch.dtype, beta: float) -> None:
    m, k, most = 11, 37, 70
    a, b, c = (torch.randn(size, dtype=dtype) for size in ((m, k), (k, most), (m, most)))

    def made(n: int) -> Tensor:
        out, right = c[:, :n].clone(), b[:, :n].clone()
        operands = Operand(0, 0, (0, n, 0, 1)), Operand(1, 0, (0, k, 1, 0)), Operand(2, 0, (0, 0, n, 1))
        assert run([Instruction(Code.PRODUCT, (1, m, k, n), operands, 0.3, beta)], [out, a, right])
        return out

    alone = torch.cat([made(n)[:, n - 1 :] for n in range(1, most + 1)], dim=1)
    assert all(torch.equal(made(n), alone[:, :n]) for n in range(1, most + 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("code", "function", "p"),
    [
        (Code.EXPONENTIAL, torch.exp, 0.0),
        (Code.TANH, torch.tanh, 0.0),
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


Uses = list[list[int]]


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    uses=st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=12),
)
def test_pieces_of_memory_share_places_only_where_their_uses_lie_apart(sizes: list[int], uses: Uses) -> None:
    places, end, used = shared(Code.PRODUCT, sizes, uses)
    for base, times in used.items():
        assert places[base] + sizes[base] <= end
        for other, others in used.items():
            if other != base and max(times[0], others[0]) <= min(times[-1], others[-1]):
                apart = places[base] + sizes[base] <= places[other] or places[other] + sizes[other] <= places[base]
                assert apart or not sizes[base] or not sizes[other]


def shared(code: Code, sizes: list[int], uses: Uses) -> tuple[list[int], int, dict[int, list[int]]]:
    """Places and their end, and when each piece is used."""
    used: dict[int, list[int]] = {}
    instructions = []
    for at, bases in enumerate(uses):
        operands = tuple(Operand(base % len(sizes), 0, (1,)) for base in bases)
        instructions.append(Instruction(code, (1,), operands))
        for operand in operands:
            used.setdefault(operand.base, []).append(at)
    return *_shared_places(instructions, sizes), used


def test_what_is_made_number_by_number_takes_the_place_of_what_is_read_last() -> None:
    uses = [[0], [1, 0], [2, 1, 1], [3, 2, 0], [3]]
    first, second, third, fourth = shared(Code.ADD, [64] * 4, uses)[0]
    assert first != second
    assert second == third == fourth
    assert shared(Code.ADD, [64, 64, 128, 64], uses)[0] == [0, 64, 128, 0]
    _, second, third, fourth = shared(Code.PRODUCT, [64] * 4, uses)[0]
    assert second != third != fourth


SIDE = 4


@settings(max_examples=300, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from([Code.COPY, Code.ADD, Code.MULTIPLY, Code.MULTIPLY_ADD, Code.SOFTMAX, Code.PRODUCT]),
            *(st.integers(0, 5) for _ in range(3)),
            *(st.booleans() for _ in range(3)),
        ),
        min_size=1,
        max_size=14,
    )
)
def test_shared_places_change_no_number(steps: list[tuple[Code, int, int, int, bool, bool, bool]]) -> None:
    """Base 0 has what is given, base 1 gets all results; each other piece is made by the first step that writes it."""
    given_numbers, total = torch.randn(SIDE, SIDE, dtype=torch.float64), torch.zeros(SIDE, SIDE, dtype=torch.float64)
    known: dict[int, Tensor] = {0: given_numbers.clone(), 1: total.clone()}
    instructions = []
    for code, to, first, second, *turned in steps:
        to, a, b = to % 4 + 2, *(one if one in known else 0 for one in (first, second))
        if code in (Code.SOFTMAX, Code.MULTIPLY_ADD, Code.PRODUCT) or to in known:
            # What adds to numbers has some, rows are contiguous, and a product writes where it does not read.
            turned[0] = False
        x, y = (known[one].t() if t else known[one] for one, t in zip((a, b), turned[1:], strict=True))
        if code is Code.SOFTMAX or (code is Code.PRODUCT and to in (a, b)) or (to in (a, b) and any(turned)):
            code, a, x, turned = Code.COPY, 0, known[0], [turned[0], False, False]
        made = {Code.COPY: x, Code.ADD: x + y, Code.MULTIPLY: x * y, Code.PRODUCT: x @ y}.get(code)
        if made is None:
            made = known.get(to, known[0] * 0) + x * y
            if to not in known:
                instructions.append(step(Code.FILL, [to, to, to], [False] * 3))
        known[to] = (made.t() if turned[0] else made).clone()
        instructions.append(step(code, [to, a, b], turned))
        known[1] = known[1] + known[to]
        instructions.append(step(Code.ADD, [1, 1, to], [False] * 3))
    places, end = _shared_places(instructions, [0, 0, *[SIDE * SIDE * 8] * 4])
    own = torch.full((end // 8 + 1,), math.nan, dtype=torch.float64)
    addresses = [given_numbers.data_ptr(), total.data_ptr(), *(own.data_ptr() + place for place in places[2:])]
    assert Interpreter(packed(instructions), addresses, torch.float64)([], 1.0)
    torch.testing.assert_close(total, known[1])


def step(code: Code, bases: list[int], turned: list[bool]) -> Instruction:
    """An instruction on square matrices, or on the turned ones."""
    strides = [(1, SIDE) if one else (SIDE, 1) for one in turned]
    if code is Code.PRODUCT:
        (o, on), (a, ak), (b, bn) = strides
        each = [(0, o, 0, on), (0, a, ak, 0), (0, 0, b, bn)]
        return Instruction(code, (1, SIDE, SIDE, SIDE), tuple(map(Operand, bases, [0] * 3, each)), 1.0)
    return Instruction(code, (SIDE, SIDE), tuple(map(Operand, bases, [0] * 3, strides)), float(code is Code.ADD))


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


@pytest.mark.parametrize(("index", "done"), [([2, 0, 1, 2], 4), ([0, 1, 3, 1], 2)], ids=["all", "one out of range"])
def test_a_program_is_carried_out_again_for_each_row_up_to_an_index_out_of_range(index: list[int], done: int) -> None:
    """total <- total + alpha table[index]; the index, and where the row goes, are others each time."""
    rows, total = torch.zeros(4, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    table = torch.arange(9, dtype=torch.float64).view(3, 3)
    taken, summed = Operand(1, 0, (3, 1)), Operand(2, 0, (3, 1))
    instructions = [
        Instruction(Code.TAKE_ROWS, (1, 3), (taken, Operand(0, 0, (1, 0)), Operand(3, 0, (3, 1))), 3),
        Instruction(Code.ADD, (1, 3), (summed, summed, taken), 1.0, by_alpha=True),
    ]
    bases = [None, None, total.data_ptr(), table.data_ptr()]
    interpreter = Interpreter(packed(instructions), bases, torch.float64)
    assert interpreter.repeated((torch.tensor(index), rows), 0.5, len(index)) == done
    assert rows[:done].tolist() == table[index[:done]].tolist()
    assert rows[done:].tolist() == [[0.0] * 3] * (4 - done)
    assert total.tolist() == (1 + 0.5 * table[index[:done]].sum(0)).tolist()


@pytest.mark.parametrize(
    ("left_out", "index"), [(NO_INDEX, [1, 0, 2, 1]), (-100, [1, -100, 2, -100]), (2, [1, 0, 2, 1])]
)
def test_numbers_are_taken_and_added_at_an_index_but_for_the_one_that_is_left_out(
    left_out: float, index: list[int]
) -> None:
    table, at = torch.arange(1.0, 13.0, dtype=torch.float64).view(4, 3), torch.tensor(index)
    is_taken = at != left_out
    places = at.where(is_taken, 0)[:, None]
    wanted = torch.where(is_taken, table.gather(1, places)[:, 0], 0.0)
    made, added = torch.full((4,), 9.0, dtype=torch.float64), torch.ones(4, 3, dtype=torch.float64)
    shape, by_row = (4, 1), (1, 0)
    taken, indices = Operand(0, 0, by_row), Operand(1, 0, by_row)
    instructions = [
        Instruction(Code.TAKE_AT, shape, (taken, indices, Operand(2, 0, (3, 1))), 3, left_out),
        Instruction(Code.ADD_AT, shape, (Operand(3, 0, (3, 1)), indices, taken), 3, left_out),
    ]
    bases = [one.data_ptr() for one in (made, at, table, added)]
    assert Interpreter(packed(instructions), bases, torch.float64)([], 1.0)
    assert made.tolist() == wanted.tolist()
    assert added.tolist() == torch.ones(4, 3, dtype=torch.float64).scatter_add(1, places, wanted[:, None]).tolist()


@pytest.mark.parametrize("code", [Code.TAKE_AT, Code.ADD_AT])
@pytest.mark.parametrize("index", [3, -1])
def test_an_index_out_of_its_range_ends_the_program(code: Code, index: int) -> None:
    made, at, table = torch.zeros(1, dtype=torch.float64), torch.tensor([index]), torch.zeros(1, 3, dtype=torch.float64)
    places = (Operand(0, 0, (1, 0)), Operand(1, 0, (1, 0)), Operand(2, 0, (3, 1)))
    bases = [one.data_ptr() for one in (made, at, table)]
    program = packed([Instruction(code, (1, 1), places, 3, NO_INDEX)])
    assert not Interpreter(program, bases, torch.float64)([], 1.0)
