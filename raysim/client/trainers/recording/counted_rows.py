"""Lets a recorded step compute at those places alone that count: a function on its operators.

A text's place of padding has no loss: nobody asks for its outputs, and their gradient is 0. So is every gradient that
operators make of that one place by place. These operators take the rows that count alone, and so do those that made
what they read and what nobody else reads. With a linear layer of inputs X, a row for each place, and the rows I:

    Y_I = X_I W' + b;  dW = dY_I' X_I;  db = the sum of dY_I;  dX_I = dY_I W

Where another operator reads a gradient, as attention does, it gets 0 in the rows between. LSTMs go through those texts
alone that reach a place (`packing.py`): the rows are then all places up to the last of a text that counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.recording.asked_rows import BY_NUMBER, FORWARD
from raysim.client.trainers.recording.packed_recurrence import CountedPlaces, PackedBackward, PackedForward
from raysim.client.trainers.recording.program_by_rows import ProgramByRows
from raysim.client.trainers.recording.recurrence import Backward, Forward
from raysim.client.trainers.recording.row_gradients import GRADIENTS
from raysim.client.trainers.recording.row_order import RowOrder
from raysim.client.trainers.recording.simplify import Program, free_slots, is_pure, storage, used, writes
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten


def by_counted_rows(
    program: Program, values: Sequence[Tensor], gradient_of_loss: Any, zeros: frozenset[int] = frozenset()
) -> Program | None:
    """Return the program with the outputs of those places alone that count; None where it has no last layer by place.

    It wants their outputs (N, classes) in the place of all outputs, and in that of losses, which places of the batch
    they are, int64 (N,).

    Args:
        program: simplified.
        values: of the slots of its tape, as they were recorded.
        gradient_of_loss: the operator (outputs, targets, factors) that makes the gradient at the outputs, which is 0
            where a factor is.
        zeros: numbers of the slots that are 0 in every step.
    """
    made = [op for op in program.ops if op.function is gradient_of_loss]
    if len(made) != 1 or program.wanted[0] != made[0].args[0] or program.wanted[1] is not None:
        return None
    packed = frozenset(
        op.results[0]
        for op in program.ops
        if isinstance(op.function, Forward)
        and not op.function.backwards
        and {slot.number for slot in op.args[2:]} <= zeros
    )
    while True:
        attempt = _ByRows(program, values, made[0], packed)
        found = attempt.program()
        left = packed - attempt.gone_through
        if found is None or not left:
            return found
        # Somebody needs all states of those.
        packed -= left


class _ByRows(ProgramByRows):
    """A program by rows, if some LSTMs can be packed.

    Args:
        program, values: see there.
        loss: the operator that makes the gradient at the outputs.
        packed: the states of those LSTMs.
    """

    def __init__(self, program: Program, values: Sequence[Tensor], loss: Op, packed: frozenset[Slot]) -> None:
        self._program, self._loss, self._packed = program, loss, packed
        self._values = values
        self._free: Iterator[Slot] = free_slots(program, values)
        self._shapes = _shapes(program, values)
        self._place = {id(op): place for place, op in enumerate(program.ops)}
        self._readers: dict[Slot, list[Op]] = {}
        self._written: dict[int, int] = {}
        for place, op in enumerate(program.ops):
            for slot in op.operands:
                self._readers.setdefault(slot, []).append(op)
            for slot in writes(op):
                self._written[storage(values[slot.number])] = place
        self._gradients: dict[Slot, tuple[RowOrder, Slot]] = {}
        self._asked: dict[Slot, tuple[RowOrder, Slot]] = {}
        self._shared: set[Slot] = set()
        self._instead: dict[int, list[Op]] = {}
        self._reading: Op = loss
        places, by_place, self._reaching, self._before = (next(self._free) for _ in range(4))
        self._places = {False: places, True: by_place}
        self._turned: dict[Slot, Slot] = {}
        self._made_by = {slot: op for op in program.ops for slot in op.result_slots}
        self._layers = {states: self._made_by[states] for states in packed}
        self._kept = {states: tuple(next(self._free) for _ in range(5)) for states in packed}
        self.gone_through: set[Slot] = set()

    def program(self) -> Program | None:
        """It, or None where the outputs are made of all places."""
        outputs, targets, factors = self._loss.args
        lead = self._shapes[factors]
        order = RowOrder(lead, is_flat=len(lead) == 1)
        last = order.viewed((*lead, 1), (*self._shapes[outputs][:-1], 1))
        if last is None or (self._packed and len(lead) != 2):
            return None
        asked = [(outputs, last), (targets, order), (factors, order)]
        if not all(self.may_ask(*one) for one in asked) or self._is_written(self._loss.results):
            return None
        # All factors say which places count.
        self.share([factors])
        some = self.result(self._loss.results, last)
        by_rows = _op(self._loss.function, tuple(self.ask(*one) for one in asked), some)
        self._go_back()
        hoisted, behind = self._go_forward(outputs)
        if hoisted is None:
            return None
        which = _op(
            CountedPlaces(bool(self._packed)),
            (factors,),
            (self._places[False], self._places[True], self._reaching, self._before),
        )
        ops: list[Op] = []
        for op in self._program.ops:
            if op is self._loss:
                ops += [which, *hoisted, by_rows]
            ops += self._instead.get(id(op), [] if op is self._loss else [op])
            ops += behind.get(id(op), [])
        wanted = self._asked[outputs][1], self._places[False], *self._program.wanted[2:]
        return replace(self._program, ops=used(ops, wanted), wanted=wanted)

    # What rules ask for.

    def shape(self, slot: Slot) -> tuple[int, ...] | None:
        """See `ProgramByRows`."""
        return self._shapes.get(slot)

    def gradient(self, slot: Slot) -> tuple[RowOrder, Slot] | None:
        """See `ProgramByRows`."""
        return self._gradients.get(slot)

    def readers(self, slot: Slot) -> Sequence[Op]:
        """See `ProgramByRows`."""
        return self._readers.get(slot, ())

    def may_ask(self, slot: Slot, order: RowOrder) -> bool:
        """See `ProgramByRows`."""
        shape = self._shapes.get(slot)
        if shape is None or not order.fits(shape) or slot in self._gradients:
            return False
        if slot in self._asked and self._asked[slot][0] != order:
            return False
        # Nobody may write to it behind the operator that reads all of it.
        at = min(self._place[id(self._reading)], self._place[id(self._loss)])
        return slot.number >= len(self._values) or self._written.get(storage(self._values[slot.number]), -1) < at

    def ask(self, slot: Slot, order: RowOrder) -> Slot:
        """See `ProgramByRows`."""
        return self._asked.setdefault(slot, (order, next(self._free)))[1]

    def is_asked_for(self, slot: Slot) -> bool:
        """See `ProgramByRows`."""
        return slot in self._asked

    def asked(self, slot: Slot) -> tuple[RowOrder, Slot]:
        """See `ProgramByRows`."""
        return self._asked[slot]

    def are(self, slot: Slot, order: RowOrder, rows: Slot) -> list[Op]:
        """See `ProgramByRows`."""
        had = self._asked.setdefault(slot, (order, rows))[1]
        return [] if had == rows else [_op(_aten.alias.default, (had,), rows)]

    def share(self, slots: Sequence[Any]) -> None:
        """See `ProgramByRows`."""
        self._shared.update(slot for slot in slots if isinstance(slot, Slot))

    def result(self, slot: Slot, order: RowOrder, rows: Slot | None = None) -> Slot:
        """See `ProgramByRows`."""
        made = rows or next(self._free)
        self._gradients[slot] = order, made
        return made

    def fresh(self) -> Slot:
        """See `ProgramByRows`."""
        return next(self._free)

    def turn(self, slot: Slot, rows: Slot) -> None:
        """See `ProgramByRows`."""
        self._turned[slot] = rows

    def turned(self, slot: Slot) -> Slot | None:
        """See `ProgramByRows`."""
        return self._turned.get(slot)

    def is_wanted(self, slot: Slot) -> bool:
        """See `ProgramByRows`."""
        return slot in self._program.wanted

    def made_by(self, slot: Slot) -> Op | None:
        """See `ProgramByRows`."""
        return self._made_by.get(slot)

    def states(self, slot: Slot) -> tuple[Slot, Slot] | None:
        """See `ProgramByRows`."""
        kept = self._kept.get(slot)
        return None if kept is None else (kept[0], kept[1])

    # From the loss to the first operators.

    def _go_back(self) -> None:
        needed = {slot for slot in self._program.wanted[2:] if slot is not None}
        of_rows = [self._loss]
        for op in self._program.ops[self._place[id(self._loss)] + 1 :]:
            mine = [slot for slot in op.operands if slot in self._gradients]
            if not mine and self._turned.keys().isdisjoint(op.operands):
                continue
            self._reading = op
            made = self._gradient_of(op)
            if made is None:
                needed.update(mine)
            else:
                self._instead[id(op)] = made
                of_rows.append(op)
        for op in of_rows:
            for slot in op.result_slots:
                if slot in needed and slot in self._gradients:
                    self._instead.setdefault(id(op), []).extend(self._among_zeros(slot))

    def _gradient_of(self, op: Op) -> list[Op] | None:
        if writes(op) or any(self._is_written(slot) for slot in op.result_slots):
            return None
        if not op.result_slots or self.shape(op.result_slots[0]) is None:
            return None
        if isinstance(op.function, Backward):
            return self._packed_backward(op)
        rule = GRADIENTS.get(op.function)
        return None if rule is None else rule(self, op)

    def _packed_backward(self, op: Op) -> list[Op] | None:
        dy, dh, dc, gates, _, _, u = op.args
        layer = next((one for one in self._layers.values() if one.results[1] == gates), None)
        given = None if dy is None else self.gradient(dy)
        if (
            layer is None
            or given is None
            or self.shape(gates) is None
            or (dh, dc) != (None, None)
            or any(map(self.readers, op.results[1:]))
        ):
            return None
        order, rows = given
        if not order.by_place or order.is_flat or set(op.results[1:]) & set(self._program.wanted):
            return None
        self.share([u])
        _, _, *kept = self._kept[layer.results[0]]
        made = self.result(op.results[0], order)
        return [_op(PackedBackward(layer.function.by), (rows, *kept, u, self._reaching), made)]

    def _among_zeros(self, slot: Slot) -> list[Op]:
        """All rows of a gradient."""
        order, rows = self._gradients[slot]
        shape = self._shapes[slot]
        every, all_rows = [order._replace(is_flat=True).shape[0], *order.numbers(shape)], self.fresh()
        nothing = self.fresh()
        return [
            _op(_aten.new_zeros.default, (rows, every), nothing),
            _op(_aten.index_copy.default, (nothing, 0, self._places[order.by_place], rows), all_rows),
            _op(_aten.view.default, (all_rows, list(shape)), slot),
        ]

    # From what is asked for to what it is made of.

    def _go_forward(self, outputs: Slot) -> tuple[list[Op] | None, dict[int, list[Op]]]:
        """What makes the rows that are asked for: before the loss's gradient, None where the outputs are not made by
        rows; and behind operators that come later."""
        hoisted: list[list[Op]] = []
        behind: dict[int, list[Op]] = {}
        found: set[Slot] = set()
        of_rows = {id(self._loss), *self._instead}
        loss_at = self._place[id(self._loss)]
        for op in reversed(self._program.ops):
            mine = [slot for slot in op.result_slots if slot in self._asked and slot not in found]
            states = next((slot for slot in op.result_slots if slot in self._layers), None)
            if id(op) in of_rows or not (mine or states is not None):
                continue
            self._reading = op
            found.update(mine)
            made = self._by_rows(op, states) if self._is_free(op, of_rows) else None
            if made is not None:
                of_rows.add(id(op))
                self._instead[id(op)] = []
            else:
                if outputs in mine:
                    return None, {}
                made = [one for slot in mine for one in self._taken(slot)]
            if self._place[id(op)] < loss_at:
                hoisted.append(made)
            else:
                behind[id(op)] = made
        given = [self._taken(slot) for slot in self._asked if slot not in found]
        return [op for group in (*given, *reversed(hoisted)) for op in group], behind

    def _by_rows(self, op: Op, states: Slot | None) -> list[Op] | None:
        if states is not None:
            return self._packed_forward(op, states)
        rule = FORWARD.get(op.function, BY_NUMBER if torch.Tag.pointwise in op.function.tags else None)
        return None if rule is None else rule(self, op)

    def _packed_forward(self, op: Op, states: Slot) -> list[Op] | None:
        added, u, *_ = op.args
        order = RowOrder(self._shapes[self._loss.args[2]], by_place=True)
        if not self.may_ask(added, order):
            return None
        self.gone_through.add(states)
        self.share([u])
        given = self.ask(added, order), u, self._reaching, self._before
        return [_op(PackedForward(op.function.by), given, self._kept[states])]

    def _is_free(self, op: Op, of_rows: set[int]) -> bool:
        """Whether nobody reads all rows of what it makes, and it can wait."""
        last = min(self._place[id(op)], self._place[id(self._loss)])
        for slot in (*op.operands, *op.result_slots):
            if slot.number < len(self._values) and self._written.get(storage(self._values[slot.number]), -1) >= last:
                return False
        kept = set(self._program.wanted[1:]) | self._shared
        return is_pure(op) and not any(self._is_read(slot, kept, of_rows) for slot in op.result_slots)

    def _is_read(self, slot: Slot, kept: Collection[Slot | None], of_rows: Collection[int]) -> bool:
        """Whether somebody reads all rows for whom it is not in vain."""

        def reads(op: Op) -> bool:
            made = op.result_slots
            return id(op) not in of_rows and (not is_pure(op) or any(self._is_read(one, kept, of_rows) for one in made))

        return slot in kept or any(map(reads, self.readers(slot)))

    def _taken(self, slot: Slot) -> list[Op]:
        """Its rows, of all of them."""
        order, rows = self._asked[slot]
        shape, flat = self._shapes[slot], slot
        self._shared.add(slot)
        ops = []
        if not order.is_flat and order.axes > 1:
            flat, every = self.fresh(), order._replace(is_flat=True).shape
            ops.append(_op(_aten.reshape.default, (slot, [*every, *order.numbers(shape)]), flat))
        return [*ops, _op(_aten.index_select.default, (flat, 0, self._places[order.by_place]), rows)]

    def _is_written(self, slot: Slot) -> bool:
        return slot.number < len(self._values) and storage(self._values[slot.number]) in self._written


def _shapes(program: Program, values: Sequence[Tensor]) -> dict[Slot, tuple[int, ...]]:
    """Of recorded values, and of what stands in their place, as far as it may have rows."""
    shapes = {Slot(number): tuple(value.shape) for number, value in enumerate(values)}
    shapes |= {Slot(number): tuple(value.shape) for number, value in program.constants.items()}
    for op in program.ops:
        if all(slot in shapes for slot in op.result_slots):
            continue
        given = [shapes.get(slot) for slot in op.operands]
        if None in given:
            continue
        known = [shape for shape in given if shape is not None]
        if op.function in (_aten.reshape.default, _aten.view.default) and min(op.args[1], default=0) >= 0:
            shapes[op.results] = tuple(op.args[1])
        elif op.function in (_aten.mm.default, _aten.addmm.default):
            shapes[op.results] = (known[-2][0], known[-1][1])
        elif op.function is _aten.add.Tensor:
            shapes[op.results] = tuple(torch.broadcast_shapes(*known))
        elif op.function is _aten.t.default:
            shapes[op.results] = known[0][::-1]
        elif op.function is _aten.slice.Tensor and op.args[1] == 0:
            shapes[op.results] = (op.args[3] - op.args[2], *known[0][1:])
        elif isinstance(op.function, Forward):
            (places, texts, gates), (_, units) = known[:2]
            every = (places + 1, texts, units)
            shapes |= zip(op.results, (every, (places, texts, gates), every, (places, texts, units)), strict=True)
        elif isinstance(op.function, Backward):
            shapes[op.results[0]] = shapes[op.args[3]]
    return shapes


def _op(function: Any, args: tuple[Any, ...], results: Any) -> Op:
    return Op(function, args, {}, results)
