"""Makes an interpreted step for batches of one length from those of two others, without another recording.

Where batches lie row behind row, sizes, offsets and strides grow by the same amount with each example, and a factor is
the same for all lengths, or follows from the length by one of a few rules. So two lengths say what each number is at a
third. That it is the step of that length is for others to try (`resized_steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.trainers.kernel.operators import MOST_AXES, Interpreter, Program
from raysim.client.trainers.recording.at_length import OTHER, AtLength, pairs
from raysim.client.trainers.recording.instruction_list import NotInterpreted
from raysim.client.trainers.recording.replay import in_place
from raysim.client.trainers.recording.simplify import storage, writes
from raysim.client.trainers.recording.tape import Op, Slot


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
    if not all(starmap(_is_same, pairs(large.constants, small.constants))):
        raise NotInterpreted("has constants of its own for each length")
    at = AtLength(large.length, length)
    pauses = _resized_pauses(at, large.pauses, small.pauses)
    given = large.interpreter.program
    program = at.program(given, small.interpreter.program)
    _check_inside(program, given, _of_torch(large))
    x, y = (one[:length] for one in large.batch)
    return replace(
        large,
        interpreter=large.interpreter.again(program, pauses),
        batch=(x, y),
        results=[torch.Size(at.integers(*pair)) for pair in pairs(large.results, small.results)],
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


def _resized_pauses(at: AtLength, large: Pauses, small: Pauses) -> list[tuple[int, Callable[[], None]]]:
    """What torch carries out, by the number of instructions before."""
    # What is a view at one length may be the whole at another: slots have other numbers then.
    partners: dict[Slot, Slot] = {}

    def tensors(slot: Slot) -> Tensor:
        return at.tensor(large.tensors[slot], small.tensors[partners[slot]])

    made: list[tuple[int, Callable[[], None]]] = []
    for one, other in pairs(large.each, small.each):
        if one.place != other.place:
            raise NotInterpreted(OTHER)
        for op, its_other in pairs(one.ops, other.ops):
            for slot, partner in pairs(
                (*op.operands, *op.result_slots), (*its_other.operands, *its_other.result_slots)
            ):
                known = partners.setdefault(slot, partner)
                if known != partner and _place(small.tensors[known]) != _place(small.tensors[partner]):
                    raise NotInterpreted(OTHER)
                if slot in large.constants and not _is_same(large.tensors[slot], small.tensors[partner]):
                    raise NotInterpreted("has constants of its own for each length")
        ops = list(starmap(at.op, pairs(one.ops, other.ops)))
        made.append((one.place, in_place(ops, tensors, one.read)))
    return made


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


def _check_inside(program: Program, given: Program, of_torch: Mapping[int, tuple[int, int]]) -> None:
    """Raise NotInterpreted unless all sizes are positive, and operands lie within the memory that the given ones use,
    or within that `of_torch`.

    What grows by the square of a length would otherwise lie anywhere.
    """
    axes = np.arange(MOST_AXES) < program["axes"][:, None]
    if (program["shape"] < 1)[axes].any():
        raise NotInterpreted(OTHER)
    bases, (low, high) = given["operands"]["base"], _ranges(given)
    used = bases >= 0
    least = np.full(bases.max(initial=-1) + 1, np.iinfo(np.int64).max)
    most = np.full_like(least, -1)
    np.minimum.at(least, bases[used], low[used])
    np.maximum.at(most, bases[used], high[used])
    for base, (first, last) in of_torch.items():
        if base < len(least):
            least[base], most[base] = min(least[base], first), max(most[base], last)
    low, high = _ranges(program)
    if (low[used] < least[bases[used]]).any() or (high[used] > most[bases[used]]).any():
        raise NotInterpreted(OTHER)


def _ranges(program: Program) -> tuple[Int64s, Int64s]:
    """The first and last number of each operand, in arrays of (instructions, operands); of unused ones, any."""
    operands = program["operands"]
    axes = np.arange(MOST_AXES) < program["axes"][:, None]
    ends = np.where(axes, program["shape"] - 1, 0)[:, None] * operands["strides"]
    offset = operands["offset"]
    return offset + np.minimum(ends, 0).sum(2), offset + np.maximum(ends, 0).sum(2)


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
