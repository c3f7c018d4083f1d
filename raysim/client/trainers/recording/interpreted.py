"""Turns a recorded step into a program of the compiled interpreter, which carries it out in one call.

The step is carried out once by torch's operators. The tensors that they make say where each number lies: a view is then
no work at all, and every other operator is one instruction or a few. Each is tried at once on the same numbers, and
must make what torch's operator made. The caller gives numbers that shapes alone decide: another worker, with another
batch, must come to the same end.

What depends on the batch and the masks of dropouts alone, and is not known to the interpreter, torch computes before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace as replaced
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.kernel.operators import Code, Interpreter
from raysim.client.trainers.recording.instruction_list import InstructionList, NotInterpreted
from raysim.client.trainers.recording.lowering import has_instructions, knows, lower, makes_numbers
from raysim.client.trainers.recording.replay import Replay, replay
from raysim.client.trainers.recording.simplify import Program, is_view, storage, writes
from raysim.client.trainers.recording.tape import Op, Slot, map_slots
from raysim.client.trainers.recording.update import Product, WeightUpdates
from raysim.models import memory

ROUNDING = {torch.float32: 1e-3, torch.float64: 1e-9}
"""How far an operator's numbers may be from torch's, relative to the largest of them."""

OPERAND_ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-13}
"""The same, relative to the largest number that it is made of: sums may be small beside their terms."""


def interpreted(
    program: Program,
    updates: WeightUpdates,
    batch: tuple[Slot, Slot],
    examples: tuple[Tensor, Tensor],
    results: tuple[Slot, Slot | None],
    written: Sequence[Tensor],
    keep: float,
    otherwise: Replay,
) -> Replay:
    """Make the step.

    Args:
        program, updates, batch, results, written, keep: as of `replay`.
        examples: x and y of a batch, on which it is carried out and operators are tried. Weights are left as they were,
            buffers are not.
        otherwise: the same step by torch's operators, which says what is wrong with an index out of its range.

    Raises:
        NotInterpreted: says why.
        NoLibraryError: this machine cannot compile the interpreter.
    """
    x, y = (one.contiguous() for one in examples)
    if x.device.type != "cpu":
        raise NotInterpreted("is not on a CPU")
    _check_names(program, updates.ops)
    with _as_it_was([x, y, *_changed(program, updates.ops)]):
        values = _carried_out(program, updates.ops, dict(zip(batch, (x, y), strict=True)))
    first = _first_by_torch(program, updates.ops, values)
    staying = [*(storage(one) for one in program.constants.values()), *(storage(one) for one in written)]
    lines = InstructionList(written[0].dtype, frozenset(staying))
    lines.stands(x)
    lines.stands(y)
    kept = [slot for slot in (*results, *updates.rest.values()) if slot is not None]
    known = {storage(x), storage(y), *(storage(one) for one in program.constants.values())}
    given = _given(updates.ops, first, values, kept, known)
    for slot in given:
        lines.stands(values(slot))
    made = [values(slot) for slot in results if slot is not None]
    fresh = [torch.empty(one.shape, dtype=one.dtype) for one in made]
    for one in fresh:
        lines.stands(one)
    _add_all(program, updates, first, values, written, keep, lines)
    for to, one in zip(fresh, made, strict=True):
        lines.by_number(Code.COPY, to, one)
    before = None
    if first:
        by_torch = replaced(updates, ops=first, products=(), rest={}, unused=())
        before = replay(program, by_torch, batch, given, written, keep)
    return _step(lines.interpreter(), (x, y), fresh, before, otherwise)


def _add_all(
    program: Program,
    updates: WeightUpdates,
    first: Sequence[Op],
    values: _Values,
    written: Sequence[Tensor],
    keep: float,
    lines: InstructionList,
) -> None:
    by_place: dict[int, list[Product]] = {}
    for product in updates.products:
        by_place.setdefault(product.place, []).append(product)
    by_torch = {id(op) for op in first}
    for place in range(-1, len(updates.ops)):
        if place >= 0:
            op = updates.ops[place]
            if id(op) in by_torch:
                _again(op, values)
            else:
                _add(op, values, lines)
        for product in by_place.get(place, ()):
            lines.product(
                product.matrix(written[product.weight]), values(product.a), values(product.b), 1.0, keep, by_alpha=True
            )
    for index, slot in updates.rest.items():
        into, gradient = written[index], values(slot)
        if keep == 1:
            lines.by_number(Code.ADD, into, into, gradient, p=1.0, by_alpha=True)
        else:
            lines.by_number(Code.COPY, into, gradient)
    if keep == 0:
        for index in updates.unused:
            lines.by_number(Code.FILL, written[index])


def _add(op: Op, values: _Values, lines: InstructionList) -> None:
    """Add the operator's instructions, and try them where torch's operator made the wanted numbers."""
    args, kwargs = map_slots((op.args, dict(op.kwargs)), values)
    made = [values(slot) for slot in op.result_slots]
    operands = [values(slot) for slot in op.operands]
    if _is_view(op, made, operands):
        return
    if not makes_numbers(op):
        _spoil(made, operands)
        return
    changed = [values(slot) for slot in writes(op)]
    before = [one.clone() for one in changed]
    largest = _largest(operands)
    results = op.function(*args, **kwargs)
    wanted = [one.clone() for one in (*_tensors(results), *changed)]
    for one, old in zip(changed, before, strict=True):
        one.copy_(old)
    _spoil(made, operands)
    start = len(lines)
    try:
        lower(op, map_slots(op.results, values), args, kwargs, lines)
    except RuntimeError as error:
        raise NotInterpreted(f"calls {op.function.name()} with tensors of another layout") from error
    in_range = lines.carry_out(start)
    if not in_range or not all(_near(*pair, largest) for pair in zip((*made, *changed), wanted, strict=True)):
        raise NotInterpreted(f"has other numbers by {op.function.name()} when it is interpreted")
    lines.forget({storage(one) for one in changed})


def _spoil(made: Sequence[Tensor], operands: Sequence[Tensor]) -> None:
    """Write what no operator makes where results go: what an instruction leaves out must not be there already."""
    held = {storage(one) for one in operands}
    for one in made:
        if storage(one) not in held:
            one.fill_(torch.nan if one.is_floating_point() else -1)


def _near(got: Tensor, wanted: Tensor, largest: float) -> bool:
    if not wanted.is_floating_point():
        return torch.equal(got, wanted)
    limit = max(ROUNDING[wanted.dtype] * _largest([wanted]), OPERAND_ROUNDING[wanted.dtype] * largest)
    alike = (got == wanted) | (got.isnan() & wanted.isnan())
    return bool((alike | ((got - wanted).abs() <= limit)).all())


def _largest(tensors: Sequence[Tensor]) -> float:
    """The largest of all numbers that are finite, whatever its sign."""
    finite = [one.detach().nan_to_num(0.0, 0.0, 0.0).abs() for one in tensors if one.is_floating_point()]
    return max((float(one.max()) for one in finite if one.numel()), default=0.0)


def _is_view(op: Op, made: Sequence[Tensor], operands: Sequence[Tensor]) -> bool:
    """Whether the operator makes no numbers: what it returns lies in the memory of its operands."""
    held = {storage(one) for one in operands}
    return not op.function._schema.is_mutable and bool(made) and all(storage(one) in held for one in made)


def _again(op: Op, values: _Values) -> None:
    """Carry the operator out again by torch, into the tensors that it made."""
    made = [values(slot) for slot in op.result_slots]
    operands = [values(slot) for slot in op.operands]
    if _is_view(op, made, operands):
        return
    args, kwargs = map_slots((op.args, dict(op.kwargs)), values)
    for to, one in zip(made, _tensors(op.function(*args, **kwargs)), strict=True):
        if storage(to) != storage(one):
            to.copy_(one)


def _tensors(results: Any) -> list[Tensor]:
    return [one for one in (results if isinstance(results, tuple | list) else [results]) if isinstance(one, Tensor)]


def _first_by_torch(program: Program, ops: Sequence[Op], values: _Values) -> tuple[Op, ...]:
    """Operators that the interpreter does not know, with those before them that they depend on.

    Raises:
        NotInterpreted: one of them depends on a weight, or on what the interpreter writes to.
    """
    of_weights = {storage(program.constants[number]) for number in program.roots}
    unknown = [op for op in ops if not knows(op, values)]
    chosen, needed = {id(op) for op in unknown}, _all_of(unknown, values)
    grown = True
    while grown:
        grown = False
        for op in reversed(ops):
            # Whatever made, or changes, what torch reads: torch itself.
            changes = {storage(values(slot)) for slot in (*op.result_slots, *writes(op))}
            if id(op) not in chosen and changes & needed:
                chosen.add(id(op))
                needed |= _all_of([op], values)
                grown = True
    if needed & of_weights:
        raise NotInterpreted(
            f"calls {_first_behind_weights(unknown, ops, values, of_weights)}, which the interpreter does not know"
        )
    for at, op in enumerate(ops):
        changed = {storage(values(slot)) for slot in writes(op)} if id(op) in chosen else set()
        if any(changed & _all_of([one], values) for one in ops[:at] if changed and id(one) not in chosen):
            raise NotInterpreted(f"changes by {op.function.name()} what was read before")
    return tuple(op for op in ops if id(op) in chosen)


def _check_names(program: Program, ops: Sequence[Op]) -> None:
    """Refuse at once what needs no trial: it may be large."""
    follows = {Slot(number) for number in program.roots}
    for op in ops:
        if follows.intersection(op.operands):
            if not (is_view(op) or has_instructions(op)):
                raise NotInterpreted(f"calls {op.function.name()}, which the interpreter does not know")
            follows.update(op.result_slots)


def _all_of(ops: Sequence[Op], values: _Values) -> set[int]:
    """The memory that the operators read, make and change."""
    return {storage(values(slot)) for op in ops for slot in (*op.operands, *op.result_slots)} - {0}


def _first_behind_weights(
    unknown: Sequence[Op], ops: Sequence[Op], values: _Values, of_weights: Collection[int]
) -> str:
    """The name of the first unknown operator whose operands follow from weights."""
    follows, chosen = set(of_weights), {id(op) for op in unknown}
    for op in ops:
        if follows & {storage(values(slot)) for slot in op.operands}:
            if id(op) in chosen:
                return str(op.function.name())
            follows |= {storage(values(slot)) for slot in (*op.result_slots, *writes(op))}
    return "an operator"


def _given(
    ops: Sequence[Op], first: Sequence[Op], values: _Values, kept: Sequence[Slot], known: Collection[int]
) -> list[Slot]:
    """What torch makes for the interpreter, one slot for each piece of memory, beside what it knows anyway."""
    by_torch = {id(op) for op in first}
    makes = {slot: op for op in first for slot in op.result_slots}
    operands = [slot for op in ops if id(op) not in by_torch for slot in op.operands]
    read = {storage(values(slot)) for slot in (*operands, *kept)}
    given: dict[int, Slot] = {}
    for slot in makes:
        one = values(slot)
        if storage(one) in read and storage(one) not in known and one.storage_offset() == 0:
            given.setdefault(storage(one), slot)
    if {storage(values(slot)) for slot in makes} & read - set(known) - set(given):
        raise NotInterpreted("reads a part of what torch makes")
    return list(given.values())


class _Values:
    """Tensors by slot."""

    def __init__(self, known: dict[Slot, Tensor], constants: Mapping[int, Tensor]) -> None:
        self._known, self._constants = known, constants

    def __call__(self, slot: Any) -> Any:
        """The slot's tensor; anything else stands for itself."""
        if not isinstance(slot, Slot):
            return slot
        if slot in self._known:
            return self._known[slot]
        return self._constants[slot.number].detach()

    def set(self, results: Any, values: Any) -> None:
        """Put an operator's results in."""
        if isinstance(results, Slot):
            self._known.setdefault(results, values)
        elif isinstance(results, tuple | list):
            for result, value in zip(results, values, strict=True):
                self.set(result, value)


def _changed(program: Program, ops: Sequence[Op]) -> list[Tensor]:
    """Tensors that stay between local steps, and that the operators write to."""
    slots = {slot for op in ops for slot in writes(op)}
    return [program.constants[slot.number] for slot in slots if slot.number in program.constants]


@contextmanager
def _as_it_was(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put back what the block writes to the tensors: operators are tried from the same start."""
    before = [one.clone() for one in tensors]
    yield
    for one, old in zip(tensors, before, strict=True):
        one.copy_(old)


def _carried_out(program: Program, ops: Sequence[Op], known: dict[Slot, Tensor]) -> _Values:
    values = _Values(known, program.constants)
    for op in ops:
        args, kwargs = map_slots((op.args, dict(op.kwargs)), values)
        try:
            values.set(op.results, op.function(*args, **kwargs))
        except RuntimeError as error:
            if memory.is_lacking(error):
                raise
            raise NotInterpreted(f"calls {op.function.name()}, which cannot be called by itself") from error
    return values


def _step(
    interpreter: Interpreter,
    batch: tuple[Tensor, Tensor],
    fresh: Sequence[Tensor],
    before: Callable[[Tensor, Tensor, float], Any] | None,
    otherwise: Replay,
) -> Replay:
    """`fresh`: of outputs, and of losses where there are any. `before`: what torch computes first; None: nothing."""
    (x_shape, y_shape), (x_dtype, y_dtype) = [one.shape for one in batch], [one.dtype for one in batch]
    shape, dtype, empty = fresh[0].shape, fresh[0].dtype, torch.empty
    losses_shape = fresh[1].shape if len(fresh) > 1 else None

    def step(x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor | None]:
        if x.shape != x_shape or y.shape != y_shape or x.dtype != x_dtype or y.dtype != y_dtype:
            raise RuntimeError(
                f"A step recorded for x {tuple(x_shape)} of {x_dtype} and y {tuple(y_shape)} of {y_dtype} was called "
                f"with {tuple(x.shape)} of {x.dtype} and {tuple(y.shape)} of {y.dtype}."
            )
        x, y = x.contiguous(), y.contiguous()
        given = () if before is None else before(x, y, alpha)
        outputs = empty(shape, dtype=dtype)
        losses = None if losses_shape is None else empty(losses_shape, dtype=dtype)
        made = (outputs,) if losses is None else (outputs, losses)
        if not interpreter((x, y, *given, *made), alpha):
            otherwise(x, y, alpha)
            # Part of the step was carried out twice.
            raise IndexError("An index is out of its range, and torch's operators took it.")
        return outputs, losses

    return step
