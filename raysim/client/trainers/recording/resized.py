"""Makes an interpreted step for batches of one length from those of two others, without another recording.

Where batches lie row behind row, sizes, offsets and strides grow by the same amount with each example, and a factor is
the same for all lengths, or follows from the length by one of a few rules. So two lengths say what each number is at a
third. Each length is tried against autograd before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from raysim.client.trainers.kernel.operators import Instruction, Interpreter, Operand
from raysim.client.trainers.recording.instruction_list import NotInterpreted
from raysim.client.trainers.recording.replay import in_place
from raysim.client.trainers.recording.simplify import storage, writes
from raysim.client.trainers.recording.tape import Op, Slot

T = TypeVar("T")


class Pause(NamedTuple):
    """Between two instructions.

    place: how many instructions come before. ops: what torch carries out. read: the memory, by `storage`, of what is
    read behind it.
    """

    place: int
    ops: Sequence[Op]
    read: frozenset[int]


class Pauses(NamedTuple):
    """All pauses, in order, and the tensors of their slots. constants: slots that no operator makes or changes."""

    each: Sequence[Pause]
    tensors: Mapping[Slot, Tensor]
    constants: frozenset[Slot]


@dataclass(frozen=True)
class Sized:
    """An interpreted step of batches of one length.

    interpreter: carries it out. batch: x and y, contiguous, in memory that torch reads where `by_both` says so.
    constants: by base, a tensor in memory that no instruction of the step made; None for other memory. results: shapes
    of what it returns.
    """

    interpreter: Interpreter
    batch: tuple[Tensor, Tensor]
    by_both: tuple[bool, bool]
    constants: Sequence[Tensor | None]
    results: Sequence[torch.Size]
    pauses: Pauses

    @property
    def length(self) -> int:
        """Examples."""
        return len(self.batch[1])


def resized(large: Sized, small: Sized, length: int) -> Sized:
    """Return the step for this length, in the memory of `large`.

    Args:
        large: of the longest batches.
        small: of batches with one example less.
        length: at most that of `large`.

    Raises:
        NotInterpreted: they are no two lengths of one step.
    """
    if large.length != small.length + 1 or not 1 <= length <= large.length:
        raise NotInterpreted("has no two lengths that say what it is at a third")
    if not all(starmap(_is_same, _pairs(large.constants, small.constants))):
        raise NotInterpreted("has constants of its own for each length")
    at = _Length(large.length, length)
    pauses = _resized_pauses(at, large.pauses, small.pauses)
    given = large.interpreter.instructions
    instructions = [at.instruction(*pair) for pair in _pairs(given, small.interpreter.instructions)]
    _check_inside(instructions, given, _of_torch(large))
    x, y = (one[:length] for one in large.batch)
    return replace(
        large,
        interpreter=large.interpreter.again(instructions, pauses),
        batch=(x, y),
        results=[torch.Size(at.integers(*pair)) for pair in _pairs(large.results, small.results)],
    )


SPOILT = (0x7F, 0x80, 0x00)
"""Bytes that a step may find in memory that it has to write before it reads: large numbers, negative ones near 0, and
0, which is False too. Whatever a mask or a sign decides, one of them decides otherwise."""


def spoil(sized: Sized, kept: Iterable[Tensor], byte: int) -> None:
    """Fill the memory that the step has for itself with this byte.

    Two lengths need not say what a third one must write: what is then read is what a longer batch has left, which in a
    trial may be the right numbers. `kept`: tensors in memory that others write, such as weights and buffers.
    """
    pauses = sized.pauses
    constants = (pauses.tensors[slot] for slot in pauses.constants)
    others = {0} | {storage(one) for one in (*kept, *sized.batch, *constants, *sized.constants) if one is not None}
    slots = {slot for pause in pauses.each for op in pause.ops for slot in (*op.result_slots, *writes(op))}
    for one in (*sized.interpreter.memory, *(pauses.tensors[slot] for slot in slots)):
        if storage(one) not in others:
            _bytes(one).fill_(byte)


def _resized_pauses(at: _Length, large: Pauses, small: Pauses) -> list[tuple[int, Callable[[], None]]]:
    """What torch carries out, by the number of instructions before."""
    # What is a view at one length may be the whole at another: slots have other numbers then.
    partners: dict[Slot, Slot] = {}

    def tensors(slot: Slot) -> Tensor:
        return at.tensor(large.tensors[slot], small.tensors[partners[slot]])

    made: list[tuple[int, Callable[[], None]]] = []
    for one, other in _pairs(large.each, small.each):
        if one.place != other.place:
            raise NotInterpreted(OTHER)
        for op, its_other in _pairs(one.ops, other.ops):
            pairs = _pairs((*op.operands, *op.result_slots), (*its_other.operands, *its_other.result_slots))
            for slot, partner in pairs:
                known = partners.setdefault(slot, partner)
                if known != partner and _place(small.tensors[known]) != _place(small.tensors[partner]):
                    raise NotInterpreted(OTHER)
                if slot in large.constants and not _is_same(large.tensors[slot], small.tensors[partner]):
                    raise NotInterpreted("has constants of its own for each length")
        ops = list(starmap(at.op, _pairs(one.ops, other.ops)))
        made.append((one.place, in_place(ops, tensors, one.read)))
    return made


OTHER = "is another step for batches of another length"

_RULES: tuple[Callable[[int], float], ...] = (
    lambda n: 1 / n,
    lambda n: n,
    lambda n: 1 / (n - 1),
    lambda n: n / (n - 1),
)
"""What a factor may be a multiple of; the last two are of unbiased variances, which one example does not have."""


@dataclass(frozen=True)
class _Length:
    """What a number that has one value at `largest` examples, and one at an example less, is at `length`."""

    largest: int
    length: int

    def instruction(self, large: Instruction, small: Instruction) -> Instruction:
        if (large.code, large.by_alpha) != (small.code, small.by_alpha):
            raise NotInterpreted(OTHER)
        operands = tuple(starmap(self._operand, _pairs(large.operands, small.operands)))
        p, q = self._factor(large.p, small.p), self._factor(large.q, small.q)
        return replace(large, shape=self.integers(large.shape, small.shape), operands=operands, p=p, q=q)

    def op(self, large: Op, small: Op) -> Op:
        """The operator on the slots of the larger one."""
        if large.function != small.function:
            raise NotInterpreted(OTHER)
        args, kwargs = self._argument(large.args, small.args), self._argument(dict(large.kwargs), dict(small.kwargs))
        return replace(large, args=args, kwargs=kwargs)

    def tensor(self, large: Tensor, small: Tensor) -> Tensor:
        """In the memory of the larger one."""
        if large.dtype != small.dtype or large.layout != torch.strided:
            raise NotInterpreted(OTHER)
        sizes, strides = self.integers(large.shape, small.shape), self.integers(large.stride(), small.stride())
        offset = self._integer(int(large.storage_offset()), int(small.storage_offset()))
        return large.as_strided(sizes, strides, offset)

    def integers(self, large: Sequence[int], small: Sequence[int]) -> tuple[int, ...]:
        return tuple(starmap(self._integer, _pairs(large, small)))

    def _integer(self, large: int, small: int) -> int:
        return large - (large - small) * (self.largest - self.length)

    def _operand(self, large: Operand | None, small: Operand | None) -> Operand | None:
        if large is None or small is None:
            if large is not small:
                raise NotInterpreted(OTHER)
            return None
        if large.base != small.base:
            raise NotInterpreted(OTHER)
        offset, strides = self._integer(large.offset, small.offset), self.integers(large.strides, small.strides)
        return Operand(large.base, offset, strides)

    def _argument(self, large: Any, small: Any) -> Any:
        if type(large) is not type(small):
            raise NotInterpreted(OTHER)
        if isinstance(large, tuple | list):
            return type(large)(list(starmap(self._argument, _pairs(large, small))))
        if isinstance(large, dict):
            return {name: self._argument(one, small.get(name)) for name, one in large.items()}
        if type(large) is int:
            return self._integer(large, small)
        if isinstance(large, float):
            return self._factor(large, small)
        if not isinstance(large, Slot) and large != small:
            raise NotInterpreted(OTHER)
        return large

    def _factor(self, large: float, small: float) -> float:
        if large == small or (large != large and small != small):
            return large
        has_none = self.largest < 3 or self.length < 2
        for rule in _RULES[:2] if has_none else _RULES:
            if math.isclose(large * rule(self.largest - 1), small * rule(self.largest), rel_tol=1e-12):
                return large / rule(self.largest) * rule(self.length)
        raise NotInterpreted("has a factor that does not follow from the length of its batch")


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _of_torch(sized: Sized) -> dict[int, tuple[int, int]]:
    """By base, the first and last number of memory in which torch's operators write and read at pauses."""
    known = {storage(one): one for one in sized.pauses.tensors.values()}
    return {
        base: (0, known[address].untyped_storage().nbytes() // known[address].element_size() - 1)
        for base, address in enumerate(sized.interpreter.addresses)
        if address in known
    }


def _check_inside(
    instructions: Sequence[Instruction], given: Sequence[Instruction], of_torch: Mapping[int, tuple[int, int]]
) -> None:
    """Raise NotInterpreted unless all sizes are positive, and operands lie within the memory that the given ones use,
    or within that `of_torch`.

    What grows by the square of a length would otherwise lie anywhere.
    """
    inside = dict(of_torch)
    for base, first, last in _ranges(given):
        low, high = inside.get(base, (first, last))
        inside[base] = min(low, first), max(high, last)
    if any(min(one.shape) < 1 for one in instructions):
        raise NotInterpreted(OTHER)
    for base, first, last in _ranges(instructions):
        if first < inside[base][0] or last > inside[base][1]:
            raise NotInterpreted(OTHER)


def _ranges(instructions: Sequence[Instruction]) -> Iterator[tuple[int, int, int]]:
    """The base of each operand, and its first and last number."""
    for instruction in instructions:
        for one in instruction.operands:
            if one is not None and one.base >= 0:
                ends = [(size - 1) * stride for size, stride in zip(instruction.shape, one.strides, strict=False)]
                yield (
                    one.base,
                    one.offset + sum(end for end in ends if end < 0),
                    one.offset + sum(end for end in ends if end > 0),
                )


def _pairs(large: Sequence[T], small: Sequence[T]) -> list[tuple[T, T]]:
    if len(large) != len(small):
        raise NotInterpreted(OTHER)
    return list(zip(large, small, strict=True))


def _is_same(large: Tensor | None, small: Tensor | None) -> bool:
    """Whether both lengths read the same numbers; those of the shorter may be the first of the longer one's."""
    if large is None or small is None:
        return large is small
    if large.untyped_storage().data_ptr() == small.untyped_storage().data_ptr():
        return True
    whole, part = _bytes(large), _bytes(small)
    return len(whole) >= len(part) and torch.equal(whole[: len(part)], part)


def _bytes(tensor: Tensor) -> Tensor:
    """All bytes of the memory that the tensor lies in."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
