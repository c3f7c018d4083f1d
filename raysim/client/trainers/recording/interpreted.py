"""Turns a recorded step into a program of the compiled interpreter, which carries it out in one call, or a few.

The step is carried out once by torch's operators. The tensors that they make say where each number lies: a view is then
no work at all, and every other operator is one instruction or a few. Each is tried at once on the same numbers, and
must make what torch's operator made. The caller gives numbers that shapes alone decide: another worker, with another
batch, must come to the same end.

For an operator that it does not know, or that torch is faster at, the interpreter pauses: torch carries the operator
out on the same memory. What depends on the batch and on the masks of dropouts alone comes before the first instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.kernel.operators import Code
from raysim.client.trainers.recording.hoisted import hoisted
from raysim.client.trainers.recording.instruction_list import InstructionList, NotInterpreted, SlowerInterpreted
from raysim.client.trainers.recording.lowering import knows, lower, makes_numbers
from raysim.client.trainers.recording.replay import in_place
from raysim.client.trainers.recording.resized import Pause, Pauses, Sized
from raysim.client.trainers.recording.simplify import Program, shares_memory, storage, writes
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
) -> Sized:
    """Return the step as a program on memory of its own.

    Args:
        program, updates, batch, results, written, keep: as of `replay`.
        examples: x and y of a batch, on which it is carried out and operators are tried. Weights are left as they were,
            buffers are not.

    Raises:
        NotInterpreted: says why.
        NoLibraryError: this machine cannot compile the interpreter.
    """
    x, y = (one.contiguous() for one in examples)
    if x.device.type != "cpu":
        raise NotInterpreted("is not on a CPU")
    with _as_it_was([x, y, *_changed(program, updates.ops)]):
        values = _carried_out(program, updates.ops, dict(zip(batch, (x, y), strict=True)))
    staying = [*(storage(one) for one in program.constants.values()), *(storage(one) for one in written)]
    lines = InstructionList(written[0].dtype, frozenset(staying))
    lines.stands(x)
    lines.stands(y)
    made = [values(slot) for slot in results if slot is not None]
    fresh = [torch.empty(one.shape, dtype=one.dtype) for one in made]
    for one in fresh:
        lines.stands(one)
    _add_all(program, updates, values, written, keep, lines)
    for to, one in zip(fresh, made, strict=True):
        lines.by_number(Code.COPY, to, one)
    kept = [slot for slot in (*results, *updates.rest.values()) if slot is not None]
    kept += [slot for product in updates.products for slot in (product.a, product.b)]

    def read_behind(ops: Sequence[Op]) -> frozenset[int]:
        own = {id(op) for op in ops}
        read = [slot for op in updates.ops if id(op) not in own for slot in op.operands]
        return frozenset(storage(values(slot)) for slot in (*read, *kept))

    interpreter = lines.interpreter(lambda ops: in_place(ops, values, read_behind(ops)))
    # What instructions work on is in memory of the interpreter's own: of all that was made, only this is kept.
    carried_out = [op for _, ops in lines.pauses for op in ops]
    tensors = {slot: values(slot) for op in carried_out for slot in (*op.operands, *op.result_slots)}
    read = {storage(values(slot)) for op in carried_out for slot in op.operands}
    # Masks of dropouts are made in memory that stays.
    changed = {storage(values(slot)) for op in updates.ops for slot in writes(op)}
    constants = {slot for slot in tensors if slot.number in program.constants and storage(tensors[slot]) not in changed}
    each = [Pause(at, ops, read_behind(ops)) for at, ops in lines.pauses]
    pauses = Pauses(each, tensors, frozenset(constants))
    by_both, shapes = (storage(x) in read, storage(y) in read), [one.shape for one in fresh]
    return Sized(interpreter, (x, y), by_both, lines.constants, shapes, pauses)


def _add_all(
    program: Program,
    updates: WeightUpdates,
    values: _Values,
    written: Sequence[Tensor],
    keep: float,
    lines: InstructionList,
) -> None:
    by_place: dict[int, list[Product]] = {}
    for product in updates.products:
        by_place.setdefault(product.place, []).append(product)
    of_weights = {storage(program.constants[number]) for number in program.roots}
    first = hoisted(updates.ops, [op for op in updates.ops if not knows(op, values)], values, of_weights)
    by_torch = {id(op) for op in first}
    changed = frozenset(storage(values(slot)) for op in updates.ops for slot in writes(op))
    trials = _Trials(values, changed, lines)
    for op in first:
        trials.pause(op)
    for place in range(-1, len(updates.ops)):
        if place >= 0 and id(updates.ops[place]) not in by_torch:
            trials.add(updates.ops[place])
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


class _Trials:
    """Adds operators to a list of instructions, each tried at once: only what makes torch's numbers is taken.

    Args:
        values: the operators' tensors, as torch made them.
        changed: memory, by `storage`, that any operator of the step writes to.
        lines: what instructions are added to.
    """

    def __init__(self, values: _Values, changed: frozenset[int], lines: InstructionList) -> None:
        self._values, self._changed, self._lines = values, changed, lines
        self._passed: set[str] = set()
        """What operators that passed look like: a recurrent step has each of its operators once for every place."""

    def add(self, op: Op) -> None:
        """Add the operator's instructions where they make what torch's operator makes, and a pause for torch where
        not."""
        if shares_memory(op, self._values):
            self._lines.view(op)
        elif not makes_numbers(op):
            _spoil(self._results(op), self._operands(op))
        elif not knows(op, self._values) or not self._is_lowered(op):
            self.pause(op)

    def pause(self, op: Op) -> None:
        """Let torch carry the operator out, into the tensors that it made before."""
        if shares_memory(op, self._values):
            self._lines.view(op)
            return
        made, operands = self._results(op), self._operands(op)
        for to, one in zip(made, self._by_torch(op), strict=True):
            if storage(to) != storage(one):
                to.copy_(one)
        self._lines.pause(op, [*made, *operands])
        self._lines.forget({storage(self._values(slot)) for slot in writes(op)})

    def _is_lowered(self, op: Op) -> bool:
        made, operands = self._results(op), self._operands(op)
        changed = [self._values(slot) for slot in writes(op)]
        looks = self._looks(op)
        if looks in self._passed and not self._changed.intersection(map(storage, (*changed, *made))):
            # Its results are there, as torch made them.
            return self._lower(op, None)
        before = [one.clone() for one in changed]
        largest = _largest(operands)
        wanted = [one.clone() for one in (*self._by_torch(op), *changed)]
        for one, old in zip(changed, before, strict=True):
            one.copy_(old)
        _spoil(made, operands)
        if not self._lower(
            op, lambda: all(_near(*pair, largest) for pair in zip((*made, *changed), wanted, strict=True))
        ):
            for one, old in zip(changed, before, strict=True):
                one.copy_(old)
            return False
        self._passed.add(looks)
        self._lines.forget({storage(one) for one in changed})
        return True

    def _lower(self, op: Op, passes: Callable[[], bool] | None) -> bool:
        """Whether the operator's instructions were added; where they are to pass, they are carried out before, as where
        they lay numbers out."""
        args, kwargs = map_slots((op.args, dict(op.kwargs)), self._values)
        lines = self._lines
        try:
            with lines.attempt():
                start, laid_out = len(lines), lines.num_laid_out
                lower(op, map_slots(op.results, self._values), args, kwargs, lines)
                # Trials of later operators read what is laid out.
                is_read = passes is not None or lines.num_laid_out > laid_out
                if (is_read and not lines.carry_out(start)) or (passes is not None and not passes()):
                    raise NotInterpreted("has other numbers")
        except SlowerInterpreted:
            raise
        except (NotInterpreted, RuntimeError):
            return False
        return True

    def _by_torch(self, op: Op) -> list[Tensor]:
        args, kwargs = map_slots((op.args, dict(op.kwargs)), self._values)
        return _tensors(op.function(*args, **kwargs))

    def _results(self, op: Op) -> list[Tensor]:
        return [self._values(slot) for slot in op.result_slots]

    def _operands(self, op: Op) -> list[Tensor]:
        return [self._values(slot) for slot in op.operands]

    def _looks(self, op: Op) -> str:
        """What decides the operator's instructions: all of it but its numbers, and where in memory these lie."""
        first: dict[int, tuple[int, int]] = {}

        def look(slot: Slot) -> tuple[Any, ...]:
            one = self._values(slot)
            number, offset = first.setdefault(storage(one), (len(first), one.storage_offset()))
            return number, one.storage_offset() - offset, tuple(one.shape), one.stride(), str(one.dtype)

        return repr((op.function, map_slots((op.args, dict(op.kwargs), op.results), look)))


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


def _tensors(results: Any) -> list[Tensor]:
    return [one for one in (results if isinstance(results, tuple | list) else [results]) if isinstance(one, Tensor)]


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
