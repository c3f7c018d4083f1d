"""What counts as the same result of two calls."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raysim.config import repetition

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1.0005, 1.002, 100.0, 1e-9, math.nan, math.inf, -math.inf])
PAIRS = st.lists(st.tuples(NUMBERS, st.none() | NUMBERS), max_size=7)


def _at_once(one: torch.Tensor, other: torch.Tensor, relative: float) -> bool:
    """What `is_close` says, without blocks and without the comparison of bits before."""
    a, b = one.double(), other.double()
    finite = [each.nan_to_num(0.0, 0.0, 0.0).abs() for each in (a, b)]
    largest = max((float(each.max()) for each in finite if each.numel()), default=0.0)
    return torch.allclose(a, b, rtol=0.0, atol=relative * largest, equal_nan=True)


@pytest.mark.parametrize("block", [1, 2, 100])
@given(pairs=PAIRS)
def test_blocks_change_no_answer(block: int, pairs: list[tuple[float, float | None]]) -> None:
    one = torch.tensor([a for a, _ in pairs])
    other = torch.tensor([a if b is None else b for a, b in pairs])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repetition, "BLOCK", block)
        for left, right in ((one, other), (one.double(), other)):
            assert repetition.is_close(left, right, 1e-3) == _at_once(left, right, 1e-3)


def test_the_largest_number_of_any_block_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "BLOCK", 2)
    one = torch.tensor([1.0, 2.0, 3.0, 1000.0])
    assert repetition.is_close(one, torch.tensor([1.5, 2.0, 3.0, 1000.0]), 1e-3)
    assert not repetition.is_close(one, torch.tensor([2.5, 2.0, 3.0, 1000.0]), 1e-3)


class Pair(tuple[Any, ...]):
    """Takes its two by themselves."""

    def __new__(cls, left: Any, right: Any) -> Pair:
        return super().__new__(cls, (left, right))


class Doubled(list[Any]):
    """Is not what it is made of."""

    def __init__(self, values: Any) -> None:
        super().__init__(2 * value for value in values)


class Fields(NamedTuple):
    left: Any
    right: Any


class Counted(Fields):
    """A named tuple that is made of another argument."""

    def __new__(cls, count: int) -> Counted:
        return super().__new__(cls, torch.ones(count), count)


@pytest.mark.parametrize("value", [Pair(torch.ones(2), 3), Doubled([torch.ones(2), 3]), Counted(2)])
def test_a_class_of_a_script_s_is_not_asked_for_a_copy(value: Any) -> None:
    copy = repetition.copied(value)
    assert repetition.is_same(value, copy)
    assert copy[0] is not value[0]


def test_a_copy_of_a_named_tuple_has_its_fields() -> None:
    copy = repetition.copied(Counted(2))
    assert isinstance(copy, Counted)
    assert copy.right == 2


def test_a_copy_of_what_torch_returns_has_its_tensors() -> None:
    largest = torch.ones(2, 2).max(0)
    assert repetition.is_same(largest, repetition.copied(largest))
