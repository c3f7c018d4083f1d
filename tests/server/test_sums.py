"""Sums are a monoid, commutative but for the order of the rows they list: so chunks are added wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.server import sums as sums_module
from raysim.server.accumulator import Accumulator, Contributions, Sizes, empty
from raysim.server.sums import Sums, UpdateFacts, add, add_to, on_cpu
from raysim.server.weighted_rows import PIECE

# Integers small enough that float64 adds them without rounding: the laws then hold to the last bit.
small = st.integers(-(2**20), 2**20)


@st.composite
def sums(draw: st.DrawFn) -> Sums:
    vector = st.lists(small, min_size=3, max_size=3).map(lambda v: torch.tensor(v, dtype=torch.float64))
    pairs = st.lists(small, min_size=6, max_size=6).map(lambda v: torch.tensor(v, dtype=torch.float64).view(3, 2))
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
        fourth_power=float(draw(small)),
        held=draw(small),
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
        facts=tuple(
            draw(
                st.lists(
                    st.builds(
                        UpdateFacts,
                        position=st.integers(0, 9),
                        weight=small.map(float),
                        loss=small.map(float),
                        norm=small.map(float),
                        steps=st.integers(0, 9),
                        squared_norms=st.tuples(small.map(float)),
                    ),
                    max_size=2,
                )
            )
        ),
        weighted_steps=float(draw(small)),
        compression=draw(vector),
        encoded=draw(vector),
        shares=draw(vector),
        scored=draw(pairs),
    )


CPU = torch.device("cpu")

LISTED = ("rejected", "facts")


def test_every_field_is_drawn() -> None:
    @settings(database=None)
    @given(sums())
    def varies(a: Sums) -> None:
        for field in fields(Sums):
            value = getattr(a, field.name)
            seen.setdefault(field.name, set()).add(str(value))

    seen: dict[str, set[str]] = {}
    varies()
    assert all(len(seen[field.name]) > 1 for field in fields(Sums)), seen.keys()


def equal(left: Sums, right: Sums) -> bool:
    def same(name: str) -> bool:
        a, b = getattr(left, name), getattr(right, name)
        return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b

    return all(same(f.name) for f in fields(Sums))


@given(sums(), sums(), sums())
def test_addition_is_associative(a: Sums, b: Sums, c: Sums) -> None:
    assert equal(add(add(a, b), c), add(a, add(b, c)))


@given(sums(), sums())
def test_addition_is_commutative_but_for_the_order_of_listed_rows(a: Sums, b: Sums) -> None:
    without: dict[str, Any] = dict.fromkeys(LISTED, ())
    assert equal(replace(add(a, b), **without), replace(add(b, a), **without))
    for name in LISTED:
        assert getattr(add(a, b), name) == getattr(a, name) + getattr(b, name)


@given(sums())
def test_the_empty_sums_are_the_identity(a: Sums) -> None:
    sizes = Sizes(3, 3, 3, 3, labels=3, shares=3, encoded=3, configs=3, units=True, changes=True)
    nothing = Accumulator(sizes, CPU, torch.float64).total()
    assert equal(add(a, nothing), a)
    assert equal(add(nothing, a), a)


def contributions(weights: Sequence[float], included: Sequence[bool] | None = None) -> Contributions:
    """Of clients with as many examples, a loss of 1 and an update of norm 2 each."""
    weight, number = np.array(weights, np.float64), len(weights)
    taken = np.ones(number, np.bool_) if included is None else np.array(included)
    norms = np.full(number, 4.0)
    return Contributions.plain(
        weight, weight.astype(np.int64), squared_norm=norms, loss=np.ones(number), included=taken
    )


@given(st.lists(st.tuples(small, small), min_size=1, max_size=6))
def test_accumulating_is_adding_the_clients_own_sums(clients: list[tuple[int, int]]) -> None:
    together = Accumulator(Sizes(2, groups=1), CPU)
    apart = empty(Sizes(2, groups=1))
    for weight, value in clients:
        alone = Accumulator(Sizes(2, groups=1), CPU)
        for sums_of in (together, alone):
            sums_of.include(
                contributions([weight]),
                torch.tensor([[float(value), 1.0]]),
                torch.tensor([[4.0]], dtype=torch.float64),
            )
        apart = add(apart, alone.total())
    assert equal(together.total(), apart)


@given(st.lists(st.tuples(small, small, st.booleans()), min_size=1, max_size=6))
def test_clients_trained_together_add_as_one_by_one(clients: list[tuple[int, int, bool]]) -> None:
    # Some rows are left out, and hold what must not enter a sum.
    included = contributions([weight for weight, _, _ in clients], [taken for _, _, taken in clients])
    deltas = torch.tensor([[float(v), 1.0] if taken else [float("nan")] * 2 for _, v, taken in clients])
    squared_norms = torch.tensor([[4.0]] * len(clients), dtype=torch.float64)
    together, one_by_one = (Accumulator(Sizes(2, groups=1, units=True), CPU) for _ in range(2))
    together.include(included, deltas, squared_norms)
    for row in range(len(clients)):
        client = included.select(np.array([row]))
        one_by_one.include(client, deltas[row : row + 1], squared_norms[row : row + 1])
    assert equal(together.total(), one_by_one.total())


def test_sums_stay_on_their_device_until_they_are_asked_for() -> None:
    # "meta" has no memory to copy to the host from.
    total = Accumulator(Sizes(2, 3, 1, 1, labels=4, units=True), torch.device("meta")).total()
    vectors = [value for f in fields(Sums) if isinstance(value := getattr(total, f.name), torch.Tensor)]
    assert {vector.device.type for vector in vectors} == {"meta"}


def test_all_that_lies_on_a_device_is_taken_to_the_host() -> None:
    sizes = Sizes(3, 2, 1, 1, labels=4, shares=3, encoded=3, configs=2, units=True, changes=True)
    on_device = Accumulator(sizes, CPU).total()
    with (
        mock.patch.object(torch.Tensor, "cpu", lambda vector: vector.clone()),
        mock.patch.object(torch.Tensor, "device", SimpleNamespace(type="cuda")),
    ):
        taken = on_cpu(on_device)
    assert equal(taken, on_device)
    for field in fields(Sums):
        if isinstance(vector := getattr(taken, field.name), torch.Tensor):
            assert vector.data_ptr() != getattr(on_device, field.name).data_ptr(), field.name


@given(sums(), sums())
def test_where_the_device_has_no_memory_left_sums_are_added_on_the_host(a: Sums, b: Sums) -> None:
    added, asked = sums_module._added, []

    def full_once(left: Sums, right: Sums) -> Sums:
        asked.append(left)
        if len(asked) == 1:
            raise torch.OutOfMemoryError("full")
        return added(left, right)

    with mock.patch.object(sums_module, "_added", full_once):
        assert equal(add(a, b), added(a, b))
    assert len(asked) == 2


@given(sums(), sums())
def test_adding_changes_neither(a: Sums, b: Sums) -> None:
    left, right = deepcopy(a), deepcopy(b)
    add(a, b)
    assert equal(a, left)
    assert equal(b, right)


@given(sums(), sums())
def test_what_is_added_to_sums_lies_in_their_vectors(a: Sums, b: Sums) -> None:
    wanted, right = add(a, b), deepcopy(b)
    result = add_to(a, b)
    assert equal(result, wanted)
    assert equal(b, right)
    for field in fields(Sums):
        if isinstance(vector := getattr(result, field.name), torch.Tensor):
            assert vector is getattr(a, field.name), field.name


def test_sums_that_were_made_in_inference_mode_are_added_to_outside_it() -> None:
    def ones() -> Sums:
        accumulator = Accumulator(Sizes(3, groups=1, units=True), CPU)
        accumulator.include(contributions([1.0]), torch.ones(1, 3), torch.ones(1, 1, dtype=torch.float64))
        return accumulator.total()

    with torch.inference_mode():
        left, right = ones(), ones()
    assert add_to(left, right).delta.tolist() == [2.0, 2.0, 2.0]
    assert add_to(ones(), right).delta.tolist() == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("coefficients", [(50.0,), (1 / 3, -3.7), (0.0, 2.0)])
def test_long_updates_are_added_up_to_the_bits_of_a_product_and_an_addition(coefficients: tuple[float, ...]) -> None:
    numbers = 2 * PIECE + 5
    accumulator = Accumulator(Sizes(numbers, groups=1, units=True), CPU)
    wanted = torch.zeros(numbers, dtype=torch.float64)
    for index, weight in enumerate(coefficients):
        delta = torch.randn(1, numbers, generator=torch.Generator().manual_seed(index))
        delta[0, :: index + 3] = -0.0
        accumulator.include(contributions([weight]), delta)
        wanted += delta[0].double() * weight
    got = accumulator.total().delta
    # As integers: 0 and -0 differ.
    assert torch.equal(got.view(torch.int64), wanted.view(torch.int64))


def test_sums_of_nobody_are_zeros_however_long() -> None:
    assert not Accumulator(Sizes(2 * PIECE, groups=1), CPU).total().delta.count_nonzero()
