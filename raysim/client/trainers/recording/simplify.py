"""Shortens a recorded step without a change of its numbers: pure functions from a tape to a shorter list of operators.

- aliases go (detach: autograd leaves some where it keeps an activation), views that change nothing, and copies of whole
  numbers that nobody writes to;
- what depends on constants alone is computed once: a transposed weight is a view of memory that stays, a causal mask
  or a range of positions is a number that stays;
- equal views of one tensor are made once;
- what nobody uses goes, unless it writes or draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.recording.tape import Op, Slot, Tape, map_slots

_ALIASES = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default})

_aten = torch.ops.aten
_OF_A_SHAPE = frozenset(
    {
        *(_aten.new_full.default, _aten.new_zeros.default, _aten.new_ones.default),
        *(_aten.full_like.default, _aten.zeros_like.default, _aten.ones_like.default),
    }
)
"""Operators that ask an operand for its shape only, which is fixed."""

_RUNNING = frozenset({"running_mean", "running_var"})
"""Arguments that batch norm writes to."""


@dataclass(frozen=True)
class Program:
    """Operators, the tensors that stay between local steps, and where results stand.

    constants: by slot number; views of the weights among them. roots: which weight a constant is a view of, by its
    slot number. wanted: the slots that are asked for.
    """

    ops: tuple[Op, ...]
    constants: dict[int, Tensor]
    roots: dict[int, int]
    wanted: tuple[Slot | None, ...]


def simplified(tape: Tape, weights: Iterable[Slot], changing: Iterable[Slot], wanted: Iterable[Slot | None]) -> Program:
    """The shortest program that we know for the wanted slots.

    Args:
        tape: as recorded.
        weights: constants that are trained, whose memory stays.
        changing: other constants whose values may change between steps, as buffers do.
        wanted: results.
    """
    ops, wanted = _without_aliases(tape, tape.ops, tuple(wanted))
    program = _folded(tape, ops, {slot.number for slot in weights}, {slot.number for slot in changing}, wanted)
    program = _without_equal_views(program)
    return replace(program, ops=used(program.ops, program.wanted))


def computed_once(tape: Tape, weights: Iterable[Slot]) -> dict[int, Tensor]:
    """The constants of the program, by slot number, that operators on the tape made of shapes and literals alone.

    Views of other constants are not among them. `weights`: as of `simplified`.
    """
    ops, _ = _without_aliases(tape, tape.ops, ())
    others = tape.constants - tape.literal | {slot.number for slot in weights}
    constants = _folded(tape, ops, others - tape.constants, set(), ()).constants
    held = {storage(tape.values[number]) for number in others}
    return {number: one for number, one in constants.items() if number not in others and storage(one) not in held}


def _without_aliases(
    tape: Tape, ops: Iterable[Op], wanted: tuple[Slot | None, ...]
) -> tuple[list[Op], tuple[Slot | None, ...]]:
    stands_for: dict[Slot, Slot] = {}
    seen_through: dict[Slot, tuple[Slot, ...]] = {}
    """What a view is a view of, the nearest first."""

    def known(slot: Slot) -> Slot:
        return stands_for.get(slot, slot)

    ops = list(ops)
    written = {storage(tape.values[slot.number]) for op in ops for slot in writes(op)}
    kept = []
    for op in ops:
        op = _with_slots(op, stands_for)
        if op.function in _ALIASES or _copies_what_stays(op, tape, written):
            stands_for[op.results] = op.args[0]
            continue
        if is_view(op) and isinstance(op.results, Slot) and isinstance(op.args[0], Slot):
            nearest = op.args[0]
            behind = nearest, *seen_through.get(nearest, ())
            if (same := next((slot for slot in behind if _looks_alike(tape, op.results, slot)), None)) is not None:
                stands_for[op.results] = same
                continue
            seen_through[op.results] = behind
        kept.append(op)
    return kept, tuple(None if slot is None else known(slot) for slot in wanted)


def _copies_what_stays(op: Op, tape: Tape, written: set[int]) -> bool:
    """Whether the operator copies whole numbers, such as targets, that nobody writes to, nor to the copy.

    Those of another dtype may be weights, to which products write the step.
    """
    if op.function is not _aten.clone.default:
        return False
    made, given = (tape.values[slot.number] for slot in (op.results, op.args[0]))
    is_alike = given.dtype == torch.int64 and _look(made) == _look(given)
    return is_alike and written.isdisjoint({storage(made), storage(given)})


def _with_slots(op: Op, stands_for: Mapping[Slot, Slot]) -> Op:
    """The operator with other slots among its arguments, where some stand for them."""
    if not any(slot in stands_for for slot in op.operands):
        return op

    def known(slot: Slot) -> Slot:
        return stands_for.get(slot, slot)

    return replace(op, args=map_slots(op.args, known), kwargs=map_slots(dict(op.kwargs), known))


def _looks_alike(tape: Tape, slot: Slot, other: Slot) -> bool:
    a, b = tape.values[slot.number], tape.values[other.number]
    return _look(a) == _look(b)


def _look(tensor: Tensor) -> tuple[Any, ...]:
    place = tensor.shape, tensor.stride(), tensor.storage_offset()
    return *place, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _folded(
    tape: Tape, ops: Iterable[Op], weights: set[int], changing: set[int], wanted: tuple[Slot | None, ...]
) -> Program:
    ops = list(ops)
    written = {storage(tape.values[slot.number]) for op in ops for slot in writes(op)}
    constants = {number: tape.values[number] for number in tape.constants | weights | changing}
    roots = {number: number for number in weights}
    # What nobody but this step holds, such as torch.tensor(2.0), stays as it is.
    steady = set(tape.literal)
    kept = []
    for op in ops:
        operands = [slot.number for slot in op.operands]
        known = all(number in constants for number in operands)
        if known and operands and is_view(op):
            for slot in op.result_slots:
                constants[slot.number] = tape.values[slot.number].detach()
                if operands[0] in roots:
                    roots[slot.number] = roots[operands[0]]
                if operands[0] in steady:
                    steady.add(slot.number)
            continue
        if op.function in _OF_A_SHAPE or (all(number in steady for number in operands) and is_pure(op)):
            numbers = [slot.number for slot in op.result_slots]
            if not any(storage(tape.values[number]) in written for number in numbers):
                steady.update(numbers)
                constants.update((number, tape.values[number].detach()) for number in numbers)
                continue
        kept.append(op)
    return Program(tuple(kept), constants, roots, wanted)


def _without_equal_views(program: Program) -> Program:
    stands_for: dict[Slot, Slot] = {}
    seen: dict[Any, Slot] = {}

    def known(slot: Slot) -> Slot:
        return stands_for.get(slot, slot)

    kept = []
    for op in program.ops:
        op = _with_slots(op, stands_for)
        if is_view(op) and isinstance(op.results, Slot):
            what = op.function, repr(op.args), repr(op.kwargs)
            if what in seen:
                stands_for[op.results] = seen[what]
                continue
            seen[what] = op.results
        kept.append(op)
    wanted = tuple(None if slot is None else known(slot) for slot in program.wanted)
    return replace(program, ops=tuple(kept), wanted=wanted)


def used(ops: Iterable[Op], wanted: Iterable[Slot | None]) -> tuple[Op, ...]:
    """The operators without those that nobody needs."""
    needed = {slot for slot in wanted if slot is not None}
    kept = []
    for op in reversed(list(ops)):
        if needed.intersection(op.result_slots) or not is_pure(op):
            needed.update(op.operands)
            kept.append(op)
    return tuple(reversed(kept))


def is_view(op: Op) -> bool:
    """Whether the operator returns its first operand's memory, and writes nothing."""
    return bool(op.function.is_view)


def writes(op: Op) -> list[Slot]:
    """Operands that the operator writes to."""
    written: list[Slot] = []
    # What stands for an operator of torch, and its memory, would be kept for ever.
    for index in _written(getattr(op.function, "overload", op.function)):
        map_slots(_argument(op, index), written.append)
    return written


@cache
def _written(function: Any) -> tuple[int, ...]:
    """The places of the arguments that the operator writes to."""
    schema = function._schema
    return tuple(index for index, argument in enumerate(schema.arguments) if _is_written(schema, argument))


def _is_written(schema: Any, argument: Any) -> bool:
    if argument.alias_info is not None and argument.alias_info.is_write:
        return True
    # Some of torch's operators for batch norm do not declare what they write to.
    return argument.name in _RUNNING and "backward" not in schema.name


def _argument(op: Op, index: int) -> Any:
    argument = op.function._schema.arguments[index]
    return op.kwargs.get(argument.name) if argument.kwarg_only or index >= len(op.args) else op.args[index]


def is_pure(op: Op) -> bool:
    """Whether the operator neither writes nor draws."""
    return not op.function._schema.is_mutable and not writes(op) and not draws(op)


def draws(op: Op) -> bool:
    """Whether the operator draws from torch's generator."""
    return torch.Tag.nondeterministic_seeded in op.function.tags


def storage(tensor: Tensor) -> int:
    """The memory that the tensor is a view of; 0 where there is none, as of sparse tensors and autograd's zeros."""
    if tensor.layout != torch.strided or tensor._is_zerotensor():
        return 0
    return tensor.untyped_storage().data_ptr()


def shares_memory(op: Op, tensors: Callable[[Slot], Tensor]) -> bool:
    """Whether the operator makes no numbers: what it returns lies in the memory of its operands.

    tensors: of each slot.
    """
    held = {storage(tensors(slot)) for slot in op.operands}
    made = [storage(tensors(slot)) for slot in op.result_slots]
    return not op.function._schema.is_mutable and bool(made) and held.issuperset(made)


def free_slots(program: Program, values: Sequence[Tensor]) -> Iterator[Slot]:
    """Slots that neither the program nor the recorded values have."""
    first = max([len(values), *(slot.number + 1 for op in program.ops for slot in op.result_slots)])
    return map(Slot, count(first))
