"""Lets a recorded step compute outputs for many classes at those places alone that count: a function on its operators.

A text's place of padding has no loss: nobody asks for its outputs, and their gradient is 0. With the inputs X of the
last linear layer, a row for each place, and the rows I that count:

    O_I = X_I W' + b;  dW = dO_I' X_I;  db = the sum of dO_I;  dX_I = dO_I W, and 0 in all other rows

Of texts of which half the places count, that halves all that has to do with classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.recording.simplify import Program, free_slots, storage, writes
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten
_VIEWS = frozenset({_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default})
_FACTOR = {_aten.mm.default: 0, _aten.addmm.default: 1}
"""Products, by where their first factor stands among the arguments."""


def by_counted_rows(program: Program, values: Sequence[Tensor], gradient_of_loss: Any) -> Program | None:
    """Return the program with the outputs of those places alone that count; None where it has no such last layer.

    It wants their outputs (N, classes) in the place of all outputs, and in that of losses, which places of the batch
    they are, int64 (N,).

    Args:
        program: simplified.
        values: of the slots of its tape, as they were recorded.
        gradient_of_loss: the operator (outputs, targets, factors) that makes the gradient at the outputs, which is 0
            where a factor is.
    """
    made = [op for op in program.ops if op.function is gradient_of_loss]
    head = _Head.found(program, values, made[0]) if len(made) == 1 else None
    return None if head is None else head.by_counted_rows(free_slots(program, values))


class _Head:
    """The last layer of a program: a product whose outputs nobody but the loss reads.

    Args:
        program: see there.
        values: of the tape.
        loss: the operator that makes the gradient at the outputs.
        product: makes the outputs.
        bias: what is added behind, by an operator of its own.
    """

    def __init__(self, program: Program, values: Sequence[Tensor], loss: Op, product: Op, bias: Op | None) -> None:
        self._program, self._values, self._loss = program, values, loss
        self._product, self._bias = product, bias
        self._inputs: Slot = product.args[_FACTOR[product.function]]
        self._rows = len(values[product.results.number])
        self._readers: dict[Slot, list[Op]] = {}
        for op in program.ops:
            for slot in op.operands:
                self._readers.setdefault(slot, []).append(op)

    @classmethod
    def found(cls, program: Program, values: Sequence[Tensor], loss: Op) -> _Head | None:
        """The last layer, if it is one that can be computed row by row."""
        made_by = {slot: op for op in program.ops for slot in op.result_slots}

        def seen_through_views(slot: Slot) -> Op | None:
            op = made_by.get(slot)
            return seen_through_views(op.args[0]) if op is not None and op.function in _VIEWS else op

        product, bias = seen_through_views(loss.args[0]), None
        if product is not None and product.function is _aten.add.Tensor:
            bias, product = product, seen_through_views(product.args[0])
        if product is None or product.function not in _FACTOR or product.kwargs:
            return None
        if bias is not None and (bias.kwargs or product.function is not _aten.mm.default):
            return None
        head = cls(program, values, loss, product, bias)
        return head if head._has_rows() and head._is_read_by_the_loss_alone() and head._is_steady() else None

    def by_counted_rows(self, free: Iterator[Slot]) -> Program | None:
        """The program, or None where the gradient is read by what knows no rows."""
        flat, where, places, x, labels, some_labels, factors, made, gradient = (next(free) for _ in range(9))
        _, targets, all_factors = self._loss.args
        at, args = _FACTOR[self._product.function], self._product.args
        outputs = made if self._bias is None else next(free)
        instead = {id(one): list[Op]() for one in self._between()}
        instead[id(self._loss)] = [
            _op(_aten.reshape.default, (all_factors, [self._rows]), flat),
            _op(_aten.nonzero.default, (flat,), where),
            _op(_aten.select.int, (where, 1, 0), places),
            _op(_aten.index_select.default, (self._inputs, 0, places), x),
            _op(_aten.reshape.default, (targets, [self._rows]), labels),
            _op(_aten.index_select.default, (labels, 0, places), some_labels),
            _op(_aten.index_select.default, (flat, 0, places), factors),
            _op(self._product.function, (*args[:at], x, *args[at + 1 :]), made),
            *([] if self._bias is None else [_op(_aten.add.Tensor, (made, self._bias.args[1]), outputs)]),
            _op(self._loss.function, (outputs, some_labels, factors), gradient),
        ]
        constants = dict(self._program.constants)
        back = self._back(free, places, x, gradient, constants)
        if back is None:
            return None
        instead |= back
        ops = tuple(new for op in self._program.ops for new in instead.get(id(op), [op]))
        return replace(self._program, ops=ops, constants=constants, wanted=(outputs, places, *self._program.wanted[2:]))

    def _back(
        self, free: Iterator[Slot], places: Slot, x: Slot, gradient: Slot, constants: dict[int, Tensor]
    ) -> Mapping[int, list[Op]] | None:
        """What stands for the operators that read the gradient at all places, by their identity.

        constants: one more for each product that goes back to the inputs.
        """
        views = self._views(self._loss.results)
        instead = {id(one): list[Op]() for one in views}
        for slot in (self._loss.results, *(view.results for view in views)):
            for reader in self._readers.get(slot, ()):
                if id(reader) in instead:
                    continue
                new = self._of_reader(reader, slot, free, places, x, gradient, constants)
                if new is None:
                    return None
                instead |= new
        return instead

    def _of_reader(
        self,
        reader: Op,
        slot: Slot,
        free: Iterator[Slot],
        places: Slot,
        x: Slot,
        gradient: Slot,
        constants: dict[int, Tensor],
    ) -> Mapping[int, list[Op]] | None:
        result, given = reader.results, self._values[slot.number]
        if reader.function is _aten.sum.dim_IntList and reader.args[1] == list(range(given.dim() - 1)):
            # The gradient of the bias.
            some, shape = next(free), list(self._values[result.number].shape)
            return {
                id(reader): [
                    _op(reader.function, (gradient, [0]), some),
                    _op(_aten.view.default, (some, shape), result),
                ]
            }
        if given.shape != self._values[self._product.results.number].shape:
            return None
        if reader.function is _aten.t.default:
            # The gradient of the weights, turned.
            turned = next(free)
            instead = {id(reader): [_op(_aten.t.default, (gradient,), turned)]}
            for product in self._readers.get(result, ()):
                if product.function is not _aten.mm.default or product.args != (result, self._inputs):
                    return None
                instead[id(product)] = [replace(product, args=(turned, x))]
            return instead
        if reader.function is not _aten.mm.default:
            return None
        if reader.args[0] == slot and reader.args[1] != slot:
            some, nothing = next(free), next(free)
            constants[nothing.number] = torch.zeros_like(self._values[result.number])
            return {
                id(reader): [
                    replace(reader, args=(gradient, reader.args[1]), results=some),
                    _op(_aten.index_copy.default, (nothing, 0, places, some), result),
                ]
            }
        if reader.args[1] == slot and self._is_turned_input(reader.args[0]):
            turned = next(free)
            return {
                id(reader): [_op(_aten.t.default, (x,), turned), replace(reader, args=(turned, gradient))],
            }
        return None

    def _views(self, slot: Slot) -> list[Op]:
        """Operators that make views of it, and of those."""
        found = [op for op in self._readers.get(slot, ()) if op.function in _VIEWS]
        return [one for view in found for one in (view, *self._views(view.results))]

    def _between(self) -> list[Op]:
        """From the product on what only makes the outputs from it."""
        found = [self._product, *self._views(self._product.results)]
        if self._bias is not None:
            found += [self._bias, *self._views(self._bias.results)]
        return found

    def _has_rows(self) -> bool:
        """Whether each row of the outputs is of one place, in their order."""
        outputs, factors = (self._values[slot.number] for slot in (self._loss.args[0], self._loss.args[2]))
        rows = self._values[self._product.results.number]
        biases = [*self._product.args[: _FACTOR[self._product.function]], *(self._bias.args[1:] if self._bias else ())]
        return (
            outputs.shape[-1] == rows.shape[-1]
            and factors.numel() == len(rows)
            and all(isinstance(one, Slot) and self._values[one.number].dim() == 1 for one in biases)
        )

    def _is_read_by_the_loss_alone(self) -> bool:
        between = self._between()
        own = {op.results for op in between}
        readers = {id(op) for slot in own for op in self._readers.get(slot, ())}
        elsewhere = own.intersection(self._program.wanted[1:])
        is_wanted = self._program.wanted[0] in own and self._program.wanted[1] is None
        return is_wanted and not elsewhere and readers == {id(self._loss), *map(id, between[1:])}

    def _is_steady(self) -> bool:
        """Whether what the product reads is the same when the loss's gradient is made, and its gradient too."""
        written = {storage(self._values[slot.number]) for op in self._program.ops for slot in writes(op)}
        between = self._between()
        read = [*(slot for op in between for slot in (*op.operands, op.results)), self._loss.results]
        weights = self._program.roots
        is_here = self._inputs.number not in weights and all(slot.number < len(self._values) for slot in read)
        return is_here and written.isdisjoint(storage(self._values[slot.number]) for slot in read)

    def _is_turned_input(self, slot: Slot) -> bool:
        return any(
            op.function is _aten.t.default and op.args[0] == self._inputs and op.results == slot
            for op in self._readers.get(self._inputs, ())
        )


def _op(function: Any, args: tuple[Any, ...], results: Any) -> Op:
    return Op(function, args, {}, results)
