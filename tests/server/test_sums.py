"""Sums are a commutative monoid: that is what lets chunks be added wherever they are."""

from __future__ import annotations

from dataclasses import fields

import torch
from hypothesis import given
from hypothesis import strategies as st

from raysim.server.sums import Accumulator, Sums, add, empty

# Integers small enough that float64 adds them without rounding: the laws then hold to the last bit.
small = st.integers(-(2**20), 2**20)


@st.composite
def sums(draw: st.DrawFn) -> Sums:
    vector = st.lists(small, min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))
    return Sums(
        weight=float(draw(small)),
        normaliser=float(draw(small)),
        delta=draw(vector),
        buffers=draw(vector),
        counters=draw(vector).long(),
        squared_norms=draw(vector),
        units=draw(vector),
        moving=draw(small),
        clients=draw(small),
        norm=float(draw(small)),
        squared_norm=float(draw(small)),
        examples=draw(small),
        within_clip=draw(small),
        within_zeroing=draw(small),
        zeroed=draw(small),
        labels=draw(vector).long(),
        seen=draw(small),
        loss=float(draw(small)),
        correct=float(draw(small)),
        steps=draw(small),
        changes=draw(vector),
        rejected=tuple(draw(st.lists(st.integers(0, 9), max_size=2))),
    )


def equal(left: Sums, right: Sums) -> bool:
    def same(name: str) -> bool:
        a, b = getattr(left, name), getattr(right, name)
        if name == "rejected":
            return sorted(a) == sorted(b)
        return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b

    return all(same(f.name) for f in fields(Sums))


@given(sums(), sums(), sums())
def test_addition_is_associative(a: Sums, b: Sums, c: Sums) -> None:
    assert equal(add(add(a, b), c), add(a, add(b, c)))


@given(sums(), sums())
def test_addition_is_commutative(a: Sums, b: Sums) -> None:
    assert equal(add(a, b), add(b, a))


@given(sums())
def test_the_empty_sums_are_the_identity(a: Sums) -> None:
    assert equal(add(a, empty(3, 3, 3, 3, torch.float64, 3, changes=True)), a)


@given(st.lists(st.tuples(small, small), min_size=1, max_size=6))
def test_accumulating_is_adding_the_clients_own_sums(clients: list[tuple[int, int]]) -> None:
    together = Accumulator(2, 0, 0, 1, torch.device("cpu"))
    apart = empty(2, 0, 0, 1)
    for weight, value in clients:
        alone = Accumulator(2, 0, 0, 1, torch.device("cpu"))
        for accumulator in (together, alone):
            accumulator.include(
                weight=float(weight),
                examples=weight,
                delta=torch.tensor([float(value), 1.0]),
                buffers=torch.zeros(0),
                counters=torch.zeros(0, dtype=torch.int64),
                squared_norms=torch.tensor([4.0], dtype=torch.float64),
                squared_norm=4.0,
                seen=1,
                loss=1.0,
                correct=0.0,
            )
        apart = add(apart, alone.total())
    assert equal(together.total(), apart)
