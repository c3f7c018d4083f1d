"""Lets a recorded step compute LSTMs by the compiled passes: a pure function on its operators.

torch's kernel for all places of a layer keeps what only its own backward pass can read. Here what inputs add to the
gates, and the gradients of weights, are products of their own over all places, which may make the step of the weights:

    added = X W' + b + b';  dW = dA' X;  dU = dA' H;  db = db' = the sum of dA over places and examples;  dX = dA W

with rows by place and example: inputs X, states H before each place, and dA the gradient of what is squashed to gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysim.client.trainers.kernel.lstm import CompiledLstm
from raysim.client.trainers.recording.simplify import Program, free_slots
from raysim.client.trainers.recording.stand_in import OwnOperator
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten
_FORWARD = _aten.mkldnn_rnn_layer.default
_BACKWARD = _aten.mkldnn_rnn_layer_backward.default
_LSTM = 2
"""What torch calls an LSTM among its recurrent networks."""


@dataclass(frozen=True)
class Forward(OwnOperator):
    """`CompiledLstm.forward`. by: computes it. backwards: over the places.

    `into` puts its results in given tensors, which saves a copy where they have a place.
    """

    by: CompiledLstm
    backwards: bool

    _schema = torch._C.parse_schema(
        "raysim::lstm(Tensor added, Tensor u, Tensor h, Tensor c) -> (Tensor, Tensor, Tensor, Tensor)"
    )

    def __call__(self, added: Tensor, u: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        """States, gates, cells and their tanh."""
        return self.by.forward(added, u, h, c, self.backwards)

    def into(self, made: Sequence[Tensor], added: Tensor, u: Tensor, h: Tensor, c: Tensor) -> None:
        """Put them in these tensors."""
        self.by.forward(added, u, h, c, self.backwards, made)


@dataclass(frozen=True)
class Backward(OwnOperator):
    """`CompiledLstm.backward`; see `Forward`."""

    by: CompiledLstm
    backwards: bool

    _schema = torch._C.parse_schema(
        "raysim::lstm_backward(Tensor? dy, Tensor? dh, Tensor? dc, Tensor gates, Tensor cells, Tensor squashed, "
        "Tensor u) -> (Tensor, Tensor, Tensor)"
    )

    def __call__(
        self,
        dy: Tensor | None,
        dh: Tensor | None,
        dc: Tensor | None,
        gates: Tensor,
        cells: Tensor,
        squashed: Tensor,
        u: Tensor,
    ) -> tuple[Tensor, ...]:
        """Gradients of what is added to the gates, and of states and cells before all places."""
        return self.by.backward(dy, dh, dc, (gates, cells, squashed), u, self.backwards)

    def into(self, made: Sequence[Tensor], dy: Any, dh: Any, dc: Any, *kept_and_u: Tensor) -> None:
        """Put them in these tensors."""
        *kept, u = kept_and_u
        self.by.backward(dy, dh, dc, kept, u, self.backwards, made)


def by_passes(program: Program, values: Sequence[Tensor], by: CompiledLstm, dtype: torch.dtype) -> Program:
    """Return the program with the compiled passes in the place of each LSTM whose backward pass it has.

    Args:
        program: simplified.
        values: of its slots, as they were recorded.
        by: computes them.
        dtype: of its numbers.
    """
    backward = {op.args[-1]: op for op in program.ops if op.function is _BACKWARD}
    free = free_slots(program, values)
    layers = {
        op.results[3]: _Layer(_Given(*op.args), values, free, by)
        for op in program.ops
        if op.function is _FORWARD and _may(op, backward.get(op.results[3]), program, values, dtype)
    }
    if not layers:
        return program
    # torch's backward passes read what the compiled ones do not.
    others = [op for op in program.ops if op.function is not _BACKWARD or op.args[-1] not in layers]
    wanted = [slot for op in layers for slot in backward[op].args[10:13]] + [*program.wanted]
    read = {slot for op in others for slot in op.operands} | {slot for slot in wanted if slot is not None}
    constants, roots = dict(program.constants), dict(program.roots)
    ops: list[Op] = []
    for op in program.ops:
        if op.function is _FORWARD and op.results[3] in layers:
            layer = layers[op.results[3]]
            ops += layer.forward(op.results, read)
            # A view of memory that stays, whoever reads it: the weight is written to after the last of them.
            constants[layer.turned.number] = program.constants[layer.given.w.number].t()
            if layer.given.w.number in roots:
                roots[layer.turned.number] = roots[layer.given.w.number]
        elif op.function is _BACKWARD and op.args[-1] in layers:
            ops += layers[op.args[-1]].backward(op, read)
        else:
            ops.append(op)
    return replace(program, ops=tuple(ops), constants=constants, roots=roots)


class _Given(NamedTuple):
    """Arguments of torch's operator."""

    x: Slot
    w: Slot
    u: Slot
    b: Slot
    other_b: Slot
    h: Slot
    c: Slot
    backwards: bool
    batch_sizes: Sequence[int]
    mode: int
    hidden_size: int
    num_layers: int
    has_biases: bool
    bidirectional: bool
    batch_first: bool
    train: bool


class _Layer:
    """One layer in one direction.

    Args:
        given: torch's arguments.
        values: as they were recorded.
        free: slots that nobody has.
        by: computes the passes.
    """

    def __init__(self, given: _Given, values: Sequence[Tensor], free: Iterator[Slot], by: CompiledLstm) -> None:
        self.given, self._free, self._by = given, free, by
        self._places, self._examples, self._features = values[given.x.number].shape
        self._units = values[given.u.number].shape[1]
        self.turned, self._rows, self._states, *self._kept = (next(free) for _ in range(6))

    def forward(self, results: Sequence[Slot], read: set[Slot]) -> list[Op]:
        """Outputs, and the last state and cell if they are read."""
        given, first = self.given, int(not self.given.backwards)
        b, flat, added = (next(self._free) for _ in range(3))
        rows = self._places * self._examples
        ops = [_op(_aten.reshape.default, (given.x, [rows, self._features]), self._rows)]
        if given.has_biases:
            ops += [
                _op(_aten.add.Tensor, (given.b, given.other_b), b),
                _op(_aten.addmm.default, (b, self._rows, self.turned), flat),
            ]
        else:
            ops.append(_op(_aten.mm.default, (self._rows, self.turned), flat))
        ops += [
            _op(_aten.view.default, (flat, [self._places, self._examples, 4 * self._units]), added),
            _op(
                Forward(self._by, given.backwards),
                (added, given.u, given.h, given.c),
                (self._states, *self._kept),
            ),
            _op(_aten.slice.Tensor, (self._states, 0, first, first + self._places), results[0]),
        ]
        last = 0 if given.backwards else self._places
        for slot, source in ((results[1], self._states), (results[2], self._kept[1])):
            if slot in read:
                ops.append(_op(_aten.select.int, (source, 0, last), slot))
        return ops

    def backward(self, op: Op, read: set[Slot]) -> list[Op]:
        """Gradients of inputs, weights and biases, and of the first state and cell, those that are read."""
        given, first = self.given, int(self.given.backwards)
        dy, dh, dc = op.args[10:13]
        da, dh_first, dc_first, flat, turned, before, before_rows = (next(self._free) for _ in range(7))
        rows = self._places * self._examples
        gates, cells, squashed = self._kept
        dx, dw, du, db, other_db, to_h, to_c = op.results
        ops = [
            _op(
                Backward(self._by, given.backwards),
                (dy, dh, dc, gates, cells, squashed, given.u),
                (da, dh_first if to_h not in read else to_h, dc_first if to_c not in read else to_c),
            ),
            _op(_aten.view.default, (da, [rows, 4 * self._units]), flat),
        ]
        if dw in read or du in read:
            ops.append(_op(_aten.t.default, (flat,), turned))
        if du in read:
            ops += [
                _op(_aten.slice.Tensor, (self._states, 0, first, first + self._places), before),
                _op(_aten.view.default, (before, [rows, self._units]), before_rows),
            ]
        for slot, other in ((dw, self._rows), (du, before_rows)):
            if slot in read:
                ops.append(_op(_aten.mm.default, (turned, other), slot))
        for slot in (db, other_db):
            if slot in read:
                ops.append(_op(_aten.sum.dim_IntList, (flat, [0]), slot))
        if dx in read:
            product = next(self._free)
            ops += [
                _op(_aten.mm.default, (flat, given.w), product),
                _op(_aten.view.default, (product, [self._places, self._examples, self._features]), dx),
            ]
        return ops


def _may(op: Op, backward: Op | None, program: Program, values: Sequence[Tensor], dtype: torch.dtype) -> bool:
    given = _Given(*op.args)
    if backward is None or given.mode != _LSTM or given.batch_sizes or given.w.number not in program.constants:
        return False
    if given.x.number in program.roots:
        # Its rows would be a view of a weight that nobody knows of: it might be written to before they are read.
        return False
    tensors = [values[slot.number] for slot in (*op.operands, *op.results[:3], *backward.results) if slot is not None]
    # Views behind rely on how torch laid its results out.
    made = [values[slot.number] for slot in (*op.results[:3], *backward.results) if slot is not None]
    is_plain = all(one.dtype == dtype and one.device.type == "cpu" for one in tensors)
    readers = [one for one in program.ops if op.results[3] in one.operands]
    return is_plain and all(one.is_contiguous() for one in made) and readers == [backward]


def _op(function: Any, args: tuple[Any, ...], results: Any) -> Op:
    return Op(function, args, {}, results)
