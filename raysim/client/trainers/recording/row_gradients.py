"""Makes rows of gradients that are 0 where no place counts, by operators that read such a gradient row by row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from types import MappingProxyType
from typing import Any

import torch

from raysim.client.trainers.recording.program_by_rows import (
    SUMS,
    VIEWS,
    ProgramByRows,
    Rule,
    axis_inside,
    has_slots,
    sum_inside,
    turned,
    with_rows,
)
from raysim.client.trainers.recording.row_order import RowOrder
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten

_AS_THE_FIRST = frozenset(
    {
        *(_aten.threshold_backward.default, _aten.gelu_backward.default, _aten.tanh_backward.default),
        *(_aten.sigmoid_backward.default, _aten.silu_backward.default, _aten.hardtanh_backward.default),
        *(_aten.leaky_relu_backward.default, _aten.elu_backward.default, _aten.mish_backward.default),
        *(_aten.hardswish_backward.default, _aten.hardsigmoid_backward.default, _aten.softplus_backward.default),
        *(_aten.native_dropout_backward.default, _aten.div.Tensor, _aten.div.Scalar, _aten.neg.default),
        *(_aten.mul.Scalar, _aten._to_copy.default),
    }
)
"""Operators on each number that return 0 where their first argument is 0."""


def _of_the_first(rule: Callable[[ProgramByRows, Op, RowOrder, Slot], list[Op] | None]) -> Rule:
    """A rule for operators whose first argument is the gradient: how this lies, and its rows."""

    @wraps(rule)
    def found(rows: ProgramByRows, op: Op) -> list[Op] | None:
        given = rows.gradient(op.args[0])
        return None if given is None else rule(rows, op, *given)

    return found


def _back_by_number(rows: ProgramByRows, op: Op) -> list[Op] | None:
    given = rows.gradient(op.args[0]) if isinstance(op.args[0], Slot) else None
    others = [one for one in op.args[1:] if isinstance(one, Slot) and rows.gradient(one) is not None]
    return None if given is None or others else _made_by_number(rows, op, given[0])


def _made_by_number(rows: ProgramByRows, op: Op, order: RowOrder) -> list[Op] | None:
    shape = rows.shape(op.results)
    if shape is None or not order.fits(shape):
        return None
    args = with_rows(rows, op, order)
    return None if args is None else [replace(op, args=args, results=rows.result(op.results, order))]


def _back_by_product(rows: ProgramByRows, op: Op) -> list[Op] | None:
    """Of a gradient with another gradient or with any numbers."""
    orders = {found[0] for one in op.args if isinstance(one, Slot) and (found := rows.gradient(one)) is not None}
    return _made_by_number(rows, op, orders.pop()) if len(orders) == 1 else None


def _back_by_sum(rows: ProgramByRows, op: Op) -> list[Op] | None:
    """Of two gradients: with anything else, the sum is not 0."""
    found = [rows.gradient(one) if isinstance(one, Slot) else None for one in op.args[:2]]
    return _back_by_product(rows, op) if None not in found else None


@_of_the_first
def _back_view(rows: ProgramByRows, op: Op, order: RowOrder, made: Slot) -> list[Op] | None:
    given, result = rows.shape(op.args[0]), rows.shape(op.results)
    lying = None if given is None or result is None else order.viewed(given, result)
    if lying is None:
        return None
    rows.result(op.results, lying, made)
    return []


@_of_the_first
def _back_transposed(rows: ProgramByRows, op: Op, order: RowOrder, made: Slot) -> list[Op] | None:
    lying = turned(rows, op, order)
    if lying is None:
        return None
    rows.result(op.results, lying, made)
    return []


@_of_the_first
def _back_turned(rows: ProgramByRows, op: Op, order: RowOrder, made: Slot) -> list[Op] | None:
    """The gradient of weights, of which products with the inputs are made."""
    products = rows.readers(op.results)
    if rows.is_wanted(op.results) or not order.is_flat or not products:
        return None
    if not all(_is_of_inputs(rows, one, op.results, order) for one in products):
        return None
    turned = rows.fresh()
    for one in products:
        rows.ask(one.args[1], order)
    rows.turn(op.results, turned)
    return [replace(op, args=(made,), results=turned)]


def _is_of_inputs(rows: ProgramByRows, op: Op, turned: Slot, order: RowOrder) -> bool:
    is_product = op.function is _aten.mm.default and op.args[0] == turned and op.args[1] != turned
    return is_product and rows.may_ask(op.args[1], order)


def _back_product(rows: ProgramByRows, op: Op) -> list[Op] | None:
    a, b = op.args
    if (turned := rows.turned(a)) is not None:
        # `_back_turned` has asked for the inputs.
        return [replace(op, args=(turned, rows.asked(b)[1]))]
    given, other = rows.gradient(a), rows.gradient(b)
    if given is not None and given[0].is_flat and other is None and rows.turned(b) is None:
        rows.share([b])
        return [replace(op, args=(given[1], b), results=rows.result(op.results, given[0]))]
    if other is None or given is not None or not other[0].is_flat:
        return None
    inputs = rows.made_by(a)
    if inputs is None or inputs.function is not _aten.t.default or not rows.may_ask(inputs.args[0], other[0]):
        return None
    turned = rows.fresh()
    return [
        replace(inputs, args=(rows.ask(inputs.args[0], other[0]),), results=turned),
        replace(op, args=(turned, other[1])),
    ]


@_of_the_first
def _back_sum(rows: ProgramByRows, op: Op, order: RowOrder, made: Slot) -> list[Op] | None:
    args, shape = sum_inside(rows, op, order), rows.shape(op.results)
    if args is not None and shape is not None:
        return [replace(op, args=(made, *args), results=rows.result(op.results, order))]
    given = rows.shape(op.args[0])
    is_of_all = given is not None and sorted(axis % len(given) for axis in op.args[1]) == list(range(order.axes))
    if not is_of_all or shape is None or op.function is not _aten.sum.dim_IntList or has_slots(op.kwargs):
        return None
    some = rows.fresh()
    total = replace(op, args=(made, [0]), results=some)
    return [total, Op(_aten.view.default, (some, list(shape)), {}, op.results)]


@_of_the_first
def _back_embedding(rows: ProgramByRows, op: Op, order: RowOrder, made: Slot) -> list[Op] | None:
    _, places, words, padding, by_frequency = op.args
    if by_frequency or not rows.may_ask(places, order):
        return None
    return [replace(op, args=(made, rows.ask(places, order), words, padding, by_frequency))]


@_of_the_first
def _back_norm(rows: ProgramByRows, op: Op, order: RowOrder, made: Slot) -> list[Op] | None:
    _, x, numbers, mean, deviation, *others = op.args
    shape = rows.shape(x)
    if shape is None or len(numbers) > len(order.numbers(shape)):
        return None
    kept = (x, mean, deviation)
    if not all(rows.may_ask(slot, order) for slot in kept):
        return None
    rows.share(others)
    x, mean, deviation = (rows.ask(slot, order) for slot in kept)
    dx, *of_weights = op.results
    results = (None if dx is None else rows.result(dx, order), *of_weights)
    return [replace(op, args=(made, x, numbers, mean, deviation, *others), results=results)]


@_of_the_first
def _back_slice(rows: ProgramByRows, op: Op, order: RowOrder, made: Slot) -> list[Op] | None:
    axis = axis_inside(rows, op, order)
    if axis is None or rows.shape(op.results) is None:
        return None
    return [replace(op, args=(made, axis, *op.args[2:]), results=rows.result(op.results, order))]


@_of_the_first
def _back_expanded(rows: ProgramByRows, op: Op, order: RowOrder, made: Slot) -> list[Op] | None:
    given, shape = rows.shape(op.args[0]), rows.shape(op.results)
    if given is None or shape is None or len(given) != len(shape) or not order.fits(shape):
        return None
    # -1: as many rows as there are.
    return [replace(op, args=(made, [-1, *order.numbers(shape)]), results=rows.result(op.results, order))]


def _back_joined(rows: ProgramByRows, op: Op) -> list[Op] | None:
    found = [rows.gradient(slot) for slot in op.args[0]]
    orders = {one[0] for one in found if one is not None}
    order = orders.pop()
    axis = axis_inside(rows, op, order)
    if orders or None in found or axis is None or rows.shape(op.results) is None:
        return None
    parts = [one[1] for one in found if one is not None]
    return [replace(op, args=(parts, axis), results=rows.result(op.results, order))]


GRADIENTS: Mapping[Any, Rule] = MappingProxyType(
    {
        **dict.fromkeys(_AS_THE_FIRST, _back_by_number),
        **dict.fromkeys(VIEWS, _back_view),
        **dict.fromkeys(SUMS, _back_sum),
        _aten.mul.Tensor: _back_by_product,
        _aten.add.Tensor: _back_by_sum,
        _aten.sub.Tensor: _back_by_sum,
        _aten.transpose.int: _back_transposed,
        _aten.t.default: _back_turned,
        _aten.mm.default: _back_product,
        _aten.embedding_dense_backward.default: _back_embedding,
        _aten.native_layer_norm_backward.default: _back_norm,
        _aten.slice.Tensor: _back_slice,
        _aten.expand.default: _back_expanded,
        _aten.cat.default: _back_joined,
    }
)
"""How gradients are made of gradients that are 0 where no place counts: by the operators that read them."""
