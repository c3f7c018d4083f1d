"""The compiled interpreter of a recorded local step: instructions, and the call that carries them out."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.client.trainers.kernel.operands import check
from raysim.client.trainers.kernel.vectorised import vectorised
from raysim.storage.compiled_c import library

SOURCE = vectorised("operators.c")

MOST_AXES, MOST_OPERANDS = 6, 8

ALIGNMENT = 64
"""Bytes at multiples of which memory begins."""


class Code(IntEnum):
    """What an instruction does, as operators.c numbers it."""

    FILL = 0
    COPY = 1
    LINEAR = 2
    ADD = 3
    SUBTRACT = 4
    MULTIPLY = 5
    DIVIDE = 6
    RELU = 7
    THRESHOLD_SLOPE = 8
    CLAMP = 9
    LEAKY_RELU = 10
    LEAKY_RELU_SLOPE = 11
    EXPONENTIAL = 12
    TANH = 13
    TANH_SLOPE = 14
    SIGMOID = 15
    SIGMOID_SLOPE = 16
    GELU = 17
    GELU_BACK = 18
    SILU = 19
    SILU_BACK = 20
    HARDSWISH = 21
    HARDSWISH_BACK = 22
    SQUARE_ROOT = 23
    RECIPROCAL = 24
    LOGARITHM = 25
    ABSOLUTE = 26
    SIGN = 27
    CLAMP_SLOPE = 28
    MULTIPLY_ADD = 29
    ELU = 30
    ELU_BACK = 31
    ELU_SLOPE = 32
    SOFTPLUS = 33
    SOFTPLUS_BACK = 34
    MISH = 35
    MISH_BACK = 36
    GELU_TANH = 37
    GELU_TANH_BACK = 38
    ADD_UP = 64
    PRODUCT = 65
    SOFTMAX = 66
    LOG_SOFTMAX = 67
    SOFTMAX_SLOPE = 68
    LOG_SOFTMAX_SLOPE = 69
    ADD_AT = 70
    TAKE_ROWS = 71
    ADD_ROWS = 72
    NORMALISE = 73
    NORMALISE_SLOPE = 74
    COUNT = 75
    LARGEST = 76
    TAKE_AT = 77


IN_PLACE = frozenset({*(code for code in Code if code < Code.ADD_UP), Code.SOFTMAX, Code.LOG_SOFTMAX})
"""Codes whose instructions may write where they read: each number, or each row, is read before it is written."""

_LAYOUT = struct.Struct(f"@{2 + MOST_AXES + MOST_OPERANDS * (2 + MOST_AXES)}q2dq")
"""Of `Instruction` in operators.c: code, axes, shape; base, offset and strides of each operand; p, q, by_alpha."""

_AXES = ("<i8", MOST_AXES)

PROGRAM = np.dtype(
    [
        *(("code", "<i8"), ("axes", "<i8"), ("shape", *_AXES)),
        ("operands", [("base", "<i8"), ("offset", "<i8"), ("strides", *_AXES)], MOST_OPERANDS),
        *(("p", "<f8"), ("q", "<f8"), ("by_alpha", "<i8")),
    ]
)
"""The same as columns: a program is an array of instructions."""

Program = npt.NDArray[np.void]


@dataclass(frozen=True)
class Operand:
    """Numbers of an instruction.

    base: index of an address; -1: none. offset: in numbers behind it. strides: in numbers.
    """

    base: int
    offset: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Instruction:
    """One step of a program; operands, of which the first is written to, may be None where the code allows it.

    shape: sizes of the axes that strides are of. p, q: numbers that the code asks for. by_alpha: p is multiplied with
    the step's alpha.
    """

    code: Code
    shape: tuple[int, ...]
    operands: tuple[Operand | None, ...]
    p: float = 0.0
    q: float = 0.0
    by_alpha: bool = False


class Interpreter:
    """Carries a program out on memory at given addresses.

    Args:
        program: instructions in order, by `packed`.
        bases: the address of each base; those that change from call to call are None, and come first.
        dtype: of all numbers, float32 or float64.
        held: what lies at the addresses, and lives as long as the interpreter.
        pauses: (instruction, what is called before it), in order.

    Raises:
        NoLibraryError: this machine cannot compile it.
    """

    def __init__(
        self,
        program: Program,
        bases: Sequence[int | None],
        dtype: torch.dtype,
        held: Sequence[Tensor] = (),
        pauses: Sequence[tuple[int, Callable[[], None]]] = (),
    ) -> None:
        compiled = library(SOURCE, dtype)
        compiled.room_for.restype = compiled.run.restype = compiled.run_steps.restype = ctypes.c_int64
        once = ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p
        compiled.run.argtypes = [*once]
        compiled.run_steps.argtypes = [*once, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64]
        terms = int(program["shape"][program["code"] == Code.PRODUCT, 2].max(initial=0))
        self._packed = torch.empty(compiled.room_for(ctypes.c_int64(terms)), dtype=dtype)
        self.program, self.dtype = program, dtype
        self._given = bases, dtype, held
        self._bases = (ctypes.c_void_p * len(bases))(*(address or 0 for address in bases))
        self._changing = sum(address is None for address in bases)
        self._held = held
        self._run, self._run_steps = compiled.run, compiled.run_steps
        self._parts = [
            (pause, program.ctypes.data + start * PROGRAM.itemsize, end - start)
            for pause, start, end in _parts(len(program), pauses)
        ]
        self._bases_at, self._packed_at = ctypes.addressof(self._bases), self._packed.data_ptr()
        self.pauses = len(self._parts) > 1 or self._parts[0][0] is not None
        """Whether anything is called before or between instructions."""

    @property
    def addresses(self) -> Sequence[int | None]:
        """Of each base; None for those that change from call to call."""
        return self._given[0]

    @property
    def memory(self) -> Sequence[Tensor]:
        """A tensor in each piece of memory that it works on, but for those that change from call to call."""
        return self._held

    def again(self, program: Program, pauses: Sequence[tuple[int, Callable[[], None]]]) -> Interpreter:
        """Another program on the same memory."""
        return Interpreter(program, *self._given, pauses)

    def __call__(self, changing: Sequence[Tensor], alpha: float) -> bool:
        """Carry it out; False where an index was out of its range, behind which nothing was carried out.

        changing: tensors that begin where the bases are that change.
        """
        self._put(changing)
        for pause, start, count in self._parts:
            if pause is not None:
                pause()
            if not self._run(start, count, self._bases_at, alpha, self._packed_at):
                return False
        return True

    def repeated(self, changing: Sequence[Tensor], alpha: float, steps: int) -> int:
        """Carry a program without pauses out several times, in one call.

        Args:
            changing: contiguous tensors, whose first axis is of the times: where the bases are that change.
            alpha: of each time.
            steps: how many times.

        Returns:
            How many times it was carried out: fewer where an index was out of its range.
        """
        assert not self.pauses
        self._put(changing)
        _, start, count = self._parts[0]
        moves = (ctypes.c_int64 * len(changing))(*(one.stride(0) * one.itemsize for one in changing))
        done: int = self._run_steps(start, count, self._bases_at, alpha, self._packed_at, steps, moves, len(moves))
        return done

    def _put(self, changing: Sequence[Tensor]) -> None:
        assert len(changing) == self._changing
        bases = self._bases
        for at, tensor in enumerate(changing):
            bases[at] = tensor.data_ptr()


def class_scores(outputs: Tensor, labels: Tensor, skipped: int | None = None) -> tuple[Tensor, Tensor] | None:
    """Return -log softmax(outputs)[label] of each row, and whether the label's output is its first largest number.

    Args:
        outputs: contiguous (rows, classes), of a type that there is a library for.
        labels: contiguous int64 (rows,).
        skipped: the label of rows without a loss or a hit.

    Returns:
        (rows,) each, in the dtype of the outputs and bool; None where a label is no class.

    Raises:
        RuntimeError: outputs are not such, or labels do not fit them.
    """
    rows = len(outputs)
    _check_outputs(outputs)
    check("Cross entropy", "labels", labels, (rows,), torch.int64)
    losses, hits = torch.empty(rows, dtype=outputs.dtype), torch.empty(rows, dtype=torch.bool)
    skip = ctypes.c_int64(skipped is not None), ctypes.c_int64(skipped or 0)
    wrong = _of_classes("class_scores", outputs, labels, *skip, losses, hits)
    return None if wrong >= 0 else (losses, hits)


def class_gradient(outputs: Tensor, labels: Tensor, factors: Tensor) -> Tensor:
    """Return factor (softmax(outputs) - onehot(label)) of each row; 0 where the factor is.

    Args:
        outputs: contiguous (rows, classes), of a type that there is a library for.
        labels: contiguous int64 (rows,); those of rows with factor 0 are not read.
        factors: contiguous (rows,), in the dtype of the outputs.

    Raises:
        IndexError: a label is no class.
        RuntimeError: outputs are not such, or labels or factors do not fit them.
    """
    _check_outputs(outputs)
    check("Cross entropy", "labels", labels, outputs.shape[:1], torch.int64)
    check("Cross entropy", "factors", factors, outputs.shape[:1], outputs.dtype)
    gradient = torch.empty_like(outputs)
    wrong = _of_classes("class_gradient", outputs, labels, factors, gradient)
    if wrong >= 0:
        raise IndexError(f"label {int(labels[wrong])} is none of the {outputs.shape[1]} classes.")
    return gradient


def _check_outputs(outputs: Tensor) -> None:
    if outputs.dim() != 2 or not outputs.is_contiguous():
        raise RuntimeError(f"Cross entropy needs contiguous rows of outputs, but got shape {tuple(outputs.shape)}.")
    check("Cross entropy", "outputs", outputs, outputs.shape, outputs.dtype)


def _of_classes(name: str, outputs: Tensor, labels: Tensor, *others: Tensor | ctypes.c_int64) -> int:
    """Call a function on rows of outputs for classes; returns the first row whose label is no class, or -1."""
    function = getattr(library(SOURCE, outputs.dtype), name)
    function.restype = ctypes.c_int64
    given = (ctypes.c_void_p(one.data_ptr()) if isinstance(one, Tensor) else one for one in (outputs, labels, *others))
    return int(function(*map(ctypes.c_int64, outputs.shape), *given))


def packed(instructions: Sequence[Instruction]) -> Program:
    """The instructions as the program in C reads them."""
    return np.frombuffer(b"".join(map(_packed, instructions)), PROGRAM)


def _parts(
    count: int, pauses: Sequence[tuple[int, Callable[[], None]]]
) -> Iterator[tuple[Callable[[], None] | None, int, int]]:
    """What is called before each part of the instructions; where it begins and ends."""
    start, before = 0, None
    for at, pause in pauses:
        if before is not None or at > start:
            yield before, start, at
        start, before = at, pause
    yield before, start, count


def _packed(instruction: Instruction) -> bytes:
    shape, operands = instruction.shape, instruction.operands
    words: list[int] = [instruction.code, len(shape), *shape, *_NO_AXES[len(shape) :]]
    for operand in operands:
        if operand is None:
            words += _NONE
        else:
            words += (operand.base, operand.offset, *operand.strides, *_NO_AXES[len(operand.strides) :])
    words += _NONE * (MOST_OPERANDS - len(operands))
    return _LAYOUT.pack(*words, instruction.p, instruction.q, instruction.by_alpha)


_NO_AXES = (0,) * MOST_AXES

_NONE = (-1, 0, *_NO_AXES)
"""An operand that there is not."""
