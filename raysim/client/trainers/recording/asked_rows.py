"""Makes rows that somebody has asked for, by operators that take a tensor row by row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from raysim.client.trainers.recording.program_by_rows import (
    SUMS,
    VIEWS,
    ProgramByRows,
    Rule,
    axis_inside,
    is_shared,
    sum_inside,
    turned,
    with_rows,
)
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten


def _by_number(rows: ProgramByRows, op: Op) -> list[Op] | None:
    if not isinstance(op.results, Slot) or any(rows.gradient(slot) is not None for slot in op.operands):
        return None
    order, made = rows.asked(op.results)
    args = with_rows(rows, op, order)
    return None if args is None else [replace(op, args=args, results=made)]


def _view(rows: ProgramByRows, op: Op) -> list[Op] | None:
    order, made = rows.asked(op.results)
    result, given = rows.shape(op.results), rows.shape(op.args[0])
    if result is None or given is None:
        return None
    source = order.viewed(result, given)
    return None if source is None or not rows.may_ask(op.args[0], source) else rows.are(op.args[0], source, made)


def _transposed(rows: ProgramByRows, op: Op) -> list[Op] | None:
    order, made = rows.asked(op.results)
    source = turned(rows, op, order)
    return None if source is None or not rows.may_ask(op.args[0], source) else rows.are(op.args[0], source, made)


def _product(rows: ProgramByRows, op: Op) -> list[Op] | None:
    *bias, a, b = op.args
    order, made = rows.asked(op.results)
    if op.kwargs or not order.is_flat or not all(is_shared(rows, one, (1,)) for one in bias):
        return None
    if not rows.may_ask(a, order):
        return None
    rows.share([*bias, b])
    return [replace(op, args=(*bias, rows.ask(a, order), b), results=made)]


def _embedding(rows: ProgramByRows, op: Op) -> list[Op] | None:
    w, places, *others = op.args
    order, made = rows.asked(op.results)
    if not rows.may_ask(places, order):
        return None
    rows.share([w])
    return [replace(op, args=(w, rows.ask(places, order), *others), results=made)]


def _norm(rows: ProgramByRows, op: Op) -> list[Op] | None:
    x, numbers, *others = op.args
    asked = [rows.asked(slot) if rows.is_asked_for(slot) else None for slot in op.results]
    orders = {one[0] for one in asked if one is not None}
    shape = rows.shape(x)
    order = orders.pop()
    if orders or shape is None or len(numbers) > len(order.numbers(shape)) or not rows.may_ask(x, order):
        return None
    rows.share(others)
    results = tuple(rows.fresh() if one is None else one[1] for one in asked)
    return [replace(op, args=(rows.ask(x, order), numbers, *others), results=results)]


def _sum(rows: ProgramByRows, op: Op) -> list[Op] | None:
    order, made = rows.asked(op.results)
    args = sum_inside(rows, op, order)
    if args is None or not rows.may_ask(op.args[0], order):
        return None
    return [replace(op, args=(rows.ask(op.args[0], order), *args), results=made)]


def _slice(rows: ProgramByRows, op: Op) -> list[Op] | None:
    order, made = rows.asked(op.results)
    if (kept := rows.states(op.args[0])) is not None and op.args[1] == 0 and order.by_place and not order.is_flat:
        # All states but the last, or but the first.
        return [Op(_aten.alias.default, (kept[int(op.args[2] == 0)],), {}, made)]
    axis = axis_inside(rows, op, order)
    if axis is None or not rows.may_ask(op.args[0], order):
        return None
    return [replace(op, args=(rows.ask(op.args[0], order), axis, *op.args[2:]), results=made)]


def _joined(rows: ProgramByRows, op: Op) -> list[Op] | None:
    order, made = rows.asked(op.results)
    axis = axis_inside(rows, op, order)
    if axis is None or not all(rows.may_ask(slot, order) for slot in op.args[0]):
        return None
    return [replace(op, args=([rows.ask(slot, order) for slot in op.args[0]], axis), results=made)]


def _split(rows: ProgramByRows, op: Op) -> list[Op] | None:
    asked = [rows.asked(slot) if rows.is_asked_for(slot) else None for slot in op.results]
    orders = {one[0] for one in asked if one is not None}
    order = orders.pop()
    axis = axis_inside(rows, op, order)
    if orders or axis is None or not rows.may_ask(op.args[0], order):
        return None
    results = [rows.fresh() if one is None else one[1] for one in asked]
    return [replace(op, args=(rows.ask(op.args[0], order), op.args[1], axis), results=results)]


FORWARD: Mapping[Any, Rule] = MappingProxyType(
    {
        **dict.fromkeys(VIEWS, _view),
        **dict.fromkeys(SUMS, _sum),
        _aten.transpose.int: _transposed,
        _aten.mm.default: _product,
        _aten.addmm.default: _product,
        _aten.embedding.default: _embedding,
        _aten.native_layer_norm.default: _norm,
        _aten.slice.Tensor: _slice,
        _aten.split.Tensor: _split,
        _aten.cat.default: _joined,
        _aten._to_copy.default: _by_number,
    }
)
"""How rows are made that somebody has asked for."""

BY_NUMBER: Rule = _by_number
"""The same of operators on each number."""
