"""Instructions of the compiled interpreter, from tensors that say where numbers lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.kernel.operators import (
    ALIGNMENT,
    IN_PLACE,
    MOST_AXES,
    Code,
    Instruction,
    Interpreter,
    Operand,
    packed,
)
from raysim.client.trainers.recording.simplify import storage
from raysim.client.trainers.recording.tape import Op

NO_INDEX = -(2.0**62)
"""In the place of an index that is left out: no index has this value."""


class NotInterpreted(Exception):
    """What the interpreter does not know; the text goes on behind "its local step"."""


class SlowerInterpreted(NotInterpreted):
    """What makes the whole step slower by the interpreter than by torch."""


Pair = tuple[int, int]
"""Of rows and of columns."""


def viewed(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor's numbers in another shape, in the same memory.

    Raises:
        NotInterpreted: they do not lie so.
    """
    try:
        return tensor.view(*shape)
    except RuntimeError as error:
        raise NotInterpreted("has a tensor that is not contiguous") from error


class InstructionList:
    """Instructions in order, and the memory that they work on.

    Memory is of three kinds: what a step is called with, which `stands` names; what stays, such as weights; and all
    else, which an interpreter has for itself.

    Between instructions it pauses for operators that torch carries out.

    Args:
        dtype: of all numbers, float32 or float64.
        staying: the memory that stays, by `storage`.
    """

    def __init__(self, dtype: torch.dtype, staying: Collection[int]) -> None:
        self._dtype, self._constants, self._staying = dtype, frozenset(staying), set(staying)
        self._pauses: list[tuple[int, list[Op]]] = []
        self._instructions: list[Instruction] = []
        self._memory: list[Tensor] = []
        """By base, a tensor that lies in it; those that change from call to call come first."""
        self._bases: dict[int, int] = {}
        self._changing = 0
        self._laid_out: dict[tuple[Any, ...], Tensor] = {}
        """By where what was laid out lies, and how."""

    def __len__(self) -> int:
        return len(self._instructions)

    def stands(self, tensor: Tensor) -> None:
        """The tensor stands for one that a step is called with, in the order of these calls."""
        assert len(self._memory) == self._changing, "what changes comes first"
        if tensor.storage_offset() or storage(tensor) in self._bases:
            raise NotInterpreted("shares memory between what changes from step to step")
        self._base(tensor)
        self._changing += 1

    @property
    def pauses(self) -> Sequence[tuple[int, Sequence[Op]]]:
        """The instructions before each pause, and the operators that torch carries out there, in order."""
        return self._pauses

    def pause(self, op: Op, tensors: Sequence[Tensor]) -> None:
        """Pause for the operator. The tensors are those that it reads, makes or changes: their memory stays."""
        if not self._pauses or self._pauses[-1][0] < len(self):
            self._pauses.append((len(self), []))
        self._pauses[-1][1].append(op)
        self._staying.update(storage(one) for one in tensors)

    def view(self, op: Op) -> None:
        """The operator makes a view, which what torch carries out at the same pause may read."""
        if self._pauses and self._pauses[-1][0] == len(self):
            self._pauses[-1][1].append(op)

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Take back what the block adds where it fails."""
        count, laid_out = len(self), dict(self._laid_out)
        try:
            yield
        except Exception:
            del self._instructions[count:]
            self._laid_out = laid_out
            raise

    def carry_out(self, first: int) -> bool:
        """Carry the instructions from this one on out, on the memory of the tensors, with alpha 1; as `Interpreter`."""
        instructions = self._instructions[first:]
        used = {one.base for each in instructions for one in each.operands if one is not None and one.base >= 0}
        # Only what these instructions use: there are many trials, and much memory.
        numbers = {-1: -1} | {base: number for number, base in enumerate(used)}
        few = [
            replace(each, operands=tuple(one and replace(one, base=numbers[one.base]) for one in each.operands))
            for each in instructions
        ]
        return Interpreter(packed(few), [storage(self._memory[base]) for base in used], self._dtype)([], 1.0)

    def interpreter(self, by_torch: Callable[[Sequence[Op]], Callable[[], None]]) -> Interpreter:
        """Of all instructions, with memory of its own, in which places are used again.

        by_torch: from the operators of a pause to a function that carries them out.
        """
        sizes = [
            0 if base < self._changing or storage(one) in self._staying else one.untyped_storage().nbytes()
            for base, one in enumerate(self._memory)
        ]
        places, size = _shared_places(self._instructions, sizes)
        own = torch.empty(size + ALIGNMENT, dtype=torch.uint8)
        start = -(-own.data_ptr() // ALIGNMENT) * ALIGNMENT
        addresses = [
            None if base < self._changing else start + places[base] if sizes[base] else storage(one)
            for base, one in enumerate(self._memory)
        ]
        held = [own, *(one for one, size in zip(self._memory, sizes, strict=True) if not size)]
        pauses = [(at, by_torch(ops)) for at, ops in self._pauses]
        return Interpreter(packed(self._instructions), addresses, self._dtype, held, pauses)

    @property
    def constants(self) -> list[Tensor | None]:
        """By base, a tensor in memory that stayed before any instruction; None for other memory."""
        return [
            one if base >= self._changing and storage(one) in self._constants else None
            for base, one in enumerate(self._memory)
        ]

    def laid_out(self, tensor: Tensor, how: object, make: Callable[[], Tensor]) -> Tensor:
        """What `make` adds the instructions of, once for all that read the tensor: a backward pass reads it again."""
        what = storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride(), how
        if what not in self._laid_out:
            self._laid_out[what] = make()
        return self._laid_out[what]

    @property
    def num_laid_out(self) -> int:
        """How many pieces of memory `laid_out` knows."""
        return len(self._laid_out)

    def forget(self, changed: Collection[int]) -> None:
        """Lay out anew what lies in this memory, by `storage`: an operator has written to it."""
        self._laid_out = {what: one for what, one in self._laid_out.items() if what[0] not in changed}

    def _base(self, tensor: Tensor) -> int:
        place = storage(tensor)
        if place not in self._bases:
            self._bases[place] = len(self._memory)
            self._memory.append(tensor)
        return self._bases[place]

    def new(self, *shape: int) -> Tensor:
        """Memory that no operator of torch made; not a number, so that whoever reads it first is found out."""
        return torch.full(shape, torch.nan, dtype=self._dtype)

    def new_like(self, tensor: Tensor) -> Tensor:
        """Memory in the tensor's layout, as that of `new`."""
        return torch.full_like(tensor, torch.nan)

    def _operand(self, tensor: Tensor, strides: Sequence[int], dtype: torch.dtype | None = None) -> Operand:
        if tensor.dtype != (dtype or self._dtype) or tensor.layout != torch.strided or tensor.is_neg():
            raise NotInterpreted(f"has numbers of {tensor.dtype}")
        return Operand(self._base(tensor), int(tensor.storage_offset()), tuple(strides))

    def by_number(
        self,
        code: Code,
        out: Tensor,
        a: Tensor | None = None,
        b: Tensor | None = None,
        p: float = 0.0,
        q: float = 0.0,
        by_alpha: bool = False,
    ) -> None:
        """out <- f(a, b), number by number; operands are expanded."""
        tensors = [out, *(out if one is None else one.expand(out.shape) for one in (a, b))]
        shape, strides = _short(out.shape, [one.stride() for one in tensors])
        operands = tuple(self._operand(one, own) for one, own in zip(tensors, strides, strict=True))
        self._add(Instruction(code, shape, operands, p, q, by_alpha))

    def sum(self, out: Tensor, a: Tensor) -> None:
        """out <- the sum of a over the axes along which out has one number; both have as many axes."""
        self.by_number(Code.FILL, out)
        wide = out.expand(a.shape)
        shape, strides = _short(a.shape, [a.stride(), wide.stride()])
        self._add(Instruction(Code.ADD_UP, shape, (self._operand(out, strides[1]), self._operand(a, strides[0]))))

    def product(
        self,
        out: Tensor,
        a: Tensor,
        b: Tensor,
        p: float = 1.0,
        q: float = 0.0,
        by_alpha: bool = False,
        added: Tensor | None = None,
    ) -> None:
        """out <- q added + p a b, over a batch where they have three axes; `added` is expanded, None: it is out."""
        added = None if added is None else added.expand(out.shape)
        out, a, b = (one if one.dim() == 3 else one.unsqueeze(0) for one in (out, a, b))
        if out.dim() != 3:
            raise NotInterpreted("multiplies tensors of more than three axes")
        batch, m, n = out.shape
        k = a.shape[2]
        if k == 0:
            old = out if added is None else added
            self.by_number(Code.LINEAR, out, old, p=q) if q else self.by_number(Code.FILL, out)
            return
        so, sa, sb = out.stride(), a.expand(batch, m, k).stride(), b.expand(batch, k, n).stride()
        operands = [
            self._operand(out, (so[0], so[1], 0, so[2])),
            self._operand(a, (sa[0], sa[1], sa[2], 0)),
            self._operand(b, (sb[0], 0, sb[1], sb[2])),
        ]
        if added is not None:
            sc = (added if added.dim() == 3 else added.unsqueeze(0)).stride()
            operands.append(self._operand(added, (sc[0], sc[1], 0, sc[2])))
        self._add(Instruction(Code.PRODUCT, (batch, m, k, n), tuple(operands), p, q, by_alpha))

    def rows(
        self,
        code: Code,
        width: int,
        out: Sequence[Tensor | None],
        given: Sequence[Tensor | None],
        shared: Sequence[Tensor | None] = (),
        p: float = 0.0,
    ) -> None:
        """An instruction on contiguous rows of so many numbers: of rows, or of one number a row.

        out, given: (..., width) or (..., 1). shared: (width,), by all rows.
        """
        late: list[tuple[Tensor, Tensor]] = []
        operands: list[Operand | None] = []
        rows = 1
        for one in out:
            if one is not None and not one.is_contiguous():
                late.append((one, self.new(*one.shape)))
                one = late[-1][1]
            operands.append(None if one is None else self._operand(one, (one.shape[-1], 1)))
        for one in given:
            if one is not None and not one.is_contiguous():
                other = self.new(*one.shape)
                self.by_number(Code.COPY, other, one)
                one = other
            operands.append(None if one is None else self._operand(one, (one.shape[-1], 1)))
            rows = rows if one is None else one.numel() // one.shape[-1]
        for one in shared:
            if one is not None and not one.is_contiguous():
                raise NotInterpreted("has weights that are not contiguous")
            operands.append(None if one is None else self._operand(one, (0, 1)))
        self._add(Instruction(code, (rows, width), tuple(operands), p))
        for to, one in late:
            self.by_number(Code.COPY, to, one)

    def count(self, out: Tensor, by: int) -> None:
        """Whole numbers, each of which goes up."""
        shape, (strides,) = _short(out.shape, [out.stride()])
        self._add(Instruction(Code.COUNT, shape, (self._operand(out, strides, torch.int64),), float(by)))

    def largest(
        self, out: Tensor, index: Tensor, x: Tensor, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
    ) -> None:
        """out, index <- the largest number of each window of x, and its index in the plane.

        out, index: (planes, rows, columns), of windows. x: (planes, rows, columns).
        """
        (down, right), (above, left), (dilated_down, dilated_right) = stride, padding, dilation
        by_plane, by_row, by_column = x.stride()
        strides = by_plane, down * by_row, right * by_column, dilated_down * by_row, dilated_right * by_column
        read = self._operand(x, strides)
        operands = (
            self._operand(out, out.stride()),
            self._operand(index, index.stride(), torch.int64),
            # The first window begins in the margin.
            replace(read, offset=read.offset - above * by_row - left * by_column),
            Operand(-1, x.shape[1], (0, down, 0, dilated_down)),
            Operand(-1, x.shape[2], (0, 0, right, 0, dilated_right)),
        )
        self._add(Instruction(Code.LARGEST, (*out.shape, *kernel), operands, float(above), float(left)))

    def at(
        self,
        code: Code,
        shape: Sequence[int],
        out: Tensor,
        index: Tensor,
        source: Tensor,
        strides: Sequence[Sequence[int]],
        p: float,
        q: float = NO_INDEX,
    ) -> None:
        """An instruction with indices."""
        if len(shape) > MOST_AXES:
            raise NotInterpreted("has more axes")
        operands = (
            self._operand(out, strides[0]),
            self._operand(index, strides[1], torch.int64),
            self._operand(source, strides[2]),
        )
        self._add(Instruction(code, tuple(shape), operands, p, q))

    def _add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)


def _short(shape: Sequence[int], strides: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Fewer axes for the same numbers: the last is one along which the first operand is contiguous, where there is."""
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    axes.sort(key=lambda axis: (-strides[0][axis], axis))
    columns = [[shape[axis], *(own[axis] for own in strides)] for axis in axes]
    merged: list[list[int]] = []
    for column in columns:
        size, *inner = column
        if merged and all(outer == size * one for outer, one in zip(merged[-1][1:], inner, strict=True)):
            merged[-1] = [merged[-1][0] * size, *inner]
        else:
            merged.append(column)
    if len(merged) > MOST_AXES:
        raise NotInterpreted("has tensors of too many axes")
    if not merged:
        merged = [[1, *(0 for _ in strides)]]
    return tuple(column[0] for column in merged), [
        tuple(column[1 + at] for column in merged) for at in range(len(strides))
    ]


def _shared_places(instructions: Sequence[Instruction], sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces of so many bytes begin, by base, and the bytes of all: pieces whose uses lie apart share places.

    What an instruction makes number by number takes the place of what it reads last.
    """
    uses: dict[int, tuple[int, int]] = {}
    for at, instruction in enumerate(instructions):
        for operand in instruction.operands:
            if operand is not None and operand.base >= 0 and sizes[operand.base]:
                uses[operand.base] = uses.get(operand.base, (at, at))[0], at
    places, end = [0] * len(sizes), 0
    free: list[tuple[int, int]] = []
    ends: dict[int, list[int]] = {}
    begins: dict[int, list[int]] = {}
    for base, (first, last) in uses.items():
        begins.setdefault(first, []).append(base)
        ends.setdefault(last, []).append(base)
    for at, instruction in enumerate(instructions):
        taken = None
        for base in begins.get(at, ()):
            size = -(-sizes[base] // ALIGNMENT) * ALIGNMENT
            read_last = [one for one in ends.get(at, ()) if one != base and sizes[one] == sizes[base]]
            if (given_up := _given_up(instruction, base, read_last)) is not None:
                places[base], taken = places[given_up], given_up
                continue
            fitting = [one for one in free if one[1] >= size]
            if fitting:
                # The place that was given up last is the likeliest to lie in a cache.
                place, room = fitting[-1]
                free.remove((place, room))
                if room > size:
                    free.append((place + size, room - size))
            else:
                place, end = end, end + size
            places[base] = place
        for base in ends.get(at, ()):
            if base == taken:
                continue
            free.append((places[base], -(-sizes[base] // ALIGNMENT) * ALIGNMENT))
    return places, end


def _given_up(instruction: Instruction, made: int, ending: Collection[int]) -> int | None:
    """One of these bases, whose numbers the instruction reads where it writes those of `made`; None: there is none."""
    out, *others = instruction.operands
    if instruction.code not in IN_PLACE or out is None or out.base != made:
        return None
    for one in others:
        if one is not None and one.base in ending:
            alike = [each for each in others if each is not None and each.base == one.base]
            if all((each.offset, each.strides) == (out.offset, out.strides) for each in alike):
                return one.base
    return None
