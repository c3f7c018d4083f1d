"""The compiled kernel with the addresses that it takes: what is checked here is what it relies on."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.batches import ClientBatches, boundaries
from raysim.client.trainers.kernel import operands
from raysim.client.trainers.kernel.dense import SOURCE, Dense
from raysim.errors import ModelError
from raysim.models.layout import Layout
from raysim.storage.compiled_c import library

ALIGNMENT = 64
"""Bytes at multiples of which the kernel's memory begins."""


class _Line(ctypes.Structure):
    """`Dense` of dense.c."""

    _fields_ = (
        ("depth", ctypes.c_int64),
        ("widths", ctypes.c_void_p),
        ("behind", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("size", ctypes.c_int64),
        ("places", ctypes.c_int64),
        ("squared", ctypes.c_int64),
    )


class _Rule(ctypes.Structure):
    """`Rule` of dense.c."""

    _fields_ = (
        ("scale", ctypes.c_double),
        ("keep", ctypes.c_double),
        ("constants", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("begins", ctypes.c_void_p),
        ("anchored", ctypes.c_int64),
        ("penalty", ctypes.c_int64),
        ("penalised", ctypes.c_void_p),
        ("amount", ctypes.c_double),
        ("growth", ctypes.c_double),
        ("windows", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("means", ctypes.c_void_p),
    )


SHRUNK, BOUNDED = 1, 2
"""Penalties, as dense.c numbers them."""

OWN_STEPPED = 1
"""The extra of a room for gradients, as dense.c numbers it."""


class Penalised(NamedTuple):
    """Parameters whose gradients are taken at a proximal point of what is stepped.

    names: of the parameters. kind: `SHRUNK`, at local step k by amount + k growth; `BOUNDED`, to a norm of amount.
    """

    names: tuple[str, ...]
    kind: int
    amount: float
    growth: float = 0.0


class StartingPoint(NamedTuple):
    """Where clients start, and how they step: y <- y + scale grad, then y <- keep y + constant.

    broadcast: (P,).
    constants: (P,), or (K, P); None: 0.
    begins: (K, P), y before the first step; None: the broadcast.
    anchored: the gradient at the broadcast, of the same batch, is subtracted.
    penalised: which gradients are taken at another point than y, and where that is; None: none are.
    """

    broadcast: Tensor
    scale: float
    keep: float = 1.0
    constants: Tensor | None = None
    begins: Tensor | None = None
    anchored: bool = False
    penalised: Penalised | None = None


class Windows(NamedTuple):
    """Ranges of local steps over which y after each step is averaged.

    ranges: (W, 2), [first, stop), one client's behind the other's; a client's in order, apart, and within its steps.
    counts: (K,), of each client. means: (W, P), written to but for gaps.
    """

    ranges: Int64s
    counts: Int64s
    means: Tensor


class DenseKernel:
    """Local SGD of clients, and gradients of batches, for one line of layers.

    Args:
        dense: the line.
        layout: of flat vectors.
        dtype: of all floats.
        squared: whether the loss is the squared error; otherwise it is cross entropy.

    Raises:
        NoLibraryError: this machine has no compiled kernel.
        ModelError: the layout's shapes are not those of the line.
    """

    def __init__(self, dense: Dense, layout: Layout, dtype: torch.dtype, squared: bool) -> None:
        _check_line(dense, layout)
        self._size = layout.size
        self._library = library(SOURCE, dtype)
        for function in (self._library.room_for, self._library.extras_of):
            function.restype = ctypes.c_int64
        self._dense, self._dtype, self._squared = dense, dtype, squared
        offsets = dict(zip(layout.names, layout.offsets, strict=True))
        starts = [-1 if name is None else offsets[name] for name in dense.biases]
        self._arrays = [
            np.array(column, dtype=np.int64)
            for column in (dense.widths, dense.behind, [offsets[name] for name in dense.weights], starts)
        ]
        named = [name for pair in zip(dense.weights, dense.biases, strict=True) for name in pair]
        self.names = frozenset(name for name in named if name is not None)
        """Of the groups that the line reads; the layout may have others."""
        # A module may hold layers that its forward does not call: they have a column of zeros.
        self._in_layout = torch.tensor(
            [named.index(name) if name in named else len(named) for name in layout.names], dtype=torch.int64
        )
        self._line = _Line(
            len(dense.behind), *(array.ctypes.data for array in self._arrays), layout.size, 1, int(squared)
        )
        self._rooms: dict[int, _Room] = {}

    def train(
        self,
        starts: Sequence[StartingPoint],
        x: Tensor,
        y: Tensor,
        rows: Int64s,
        batches: ClientBatches,
        deltas: Tensor,
        windows: Windows | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Train all clients from each start.

        Args:
            starts: S of them.
            x, y: the clients' examples, one client's behind the other's.
            rows: (K,), how many each client has.
            batches: of K clients.
            deltas: (S, K, P), written to but for gaps.
            windows: of one start; None: there are none.

        Returns:
            The outputs of all visits in their order, one start's behind the other's, (S visits, outputs) or
            (S visits, ..., outputs); and the squared norms of the deltas' parameters, float64 (S K, G), in the layout's
            order.

        Raises:
            IndexError: a target is not a class.
            RuntimeError: examples or targets that do not fit the line.
        """
        lead, order, bounds, steps = self._fit(x, y), batches.order, batches.bounds, batches.steps
        self._check_numbers(deltas, (len(starts), len(rows), self._size), "deltas")
        for start in starts:
            self._check_numbers(start.broadcast, (self._size,), "broadcast")
            if start.constants is not None:
                shape = deltas.shape[1:] if start.constants.dim() > 1 else (self._size,)
                self._check_numbers(start.constants, shape, "constants")
            if start.begins is not None:
                self._check_numbers(start.begins, deltas.shape[1:], "begins")
        _check_examples(x, y, int(rows.sum()))
        _check_batches(rows, batches)
        if windows is not None:
            _check_windows(windows.ranges, windows.counts, steps)
            self._check_numbers(windows.means, (len(windows.ranges) * len(starts), self._size), "means")
        most = max(1, int(np.diff(bounds).max()))
        outputs = self._outputs(len(starts) * len(order), lead)
        x, y = self._contiguous(x, y)
        addresses = [whole.data_ptr() + boundaries(rows)[:-1] * (whole.nbytes // len(whole)) for whole in (x, y)]
        squares = torch.zeros((len(starts), len(rows), len(self._dense.weights), 2), dtype=torch.float64)
        visits = [_of(array) for array in (*addresses, order, bounds, steps)]
        classes = True
        for at, start in enumerate(starts):
            flags = self._flags(start.penalised)
            rule = self._rule(start, flags, windows)
            room, capacity = self._room(self._library.extras_of(ctypes.byref(rule))).of(most)
            classes &= bool(
                self._library.train(
                    ctypes.byref(self._line),
                    ctypes.c_int64(len(rows)),
                    _at(start.broadcast),
                    *visits,
                    ctypes.byref(rule),
                    *(_row(tensor, at, len(starts)) for tensor in (deltas, squares, outputs)),
                    ctypes.c_int64(capacity),
                    room,
                )
            )
        of_all = torch.nn.functional.pad(squares.flatten(2).flatten(0, 1), (0, 1)).index_select(1, self._in_layout)
        return self._checked(outputs, classes), of_all

    def _flags(self, penalised: Penalised | None) -> Int64s:
        """(D, 2), whether each weight and bias is penalised."""
        names = () if penalised is None else penalised.names
        pairs = zip(self._dense.weights, self._dense.biases, strict=True)
        return np.array([[weight in names, bias in names] for weight, bias in pairs], dtype=np.int64)

    def _rule(self, start: StartingPoint, flags: Int64s, windows: Windows | None) -> _Rule:
        """The rule with addresses of what lives as long as the arguments."""
        constants, begins, penalised = start.constants, start.begins, start.penalised
        rule = _Rule(scale=start.scale, keep=start.keep, anchored=int(start.anchored))
        if constants is not None:
            rule.constants, rule.stride = constants.data_ptr(), 0 if constants.dim() == 1 else self._size
        if begins is not None:
            rule.begins = begins.data_ptr()
        if penalised is not None:
            rule.penalty, rule.penalised = penalised.kind, flags.ctypes.data
            rule.amount, rule.growth = penalised.amount, penalised.growth
        if windows is not None:
            rule.windows, rule.counts = windows.ranges.ctypes.data, windows.counts.ctypes.data
            rule.means = windows.means.data_ptr()
        return rule

    def _room(self, extras: int) -> _Room:
        if extras not in self._rooms:
            self._rooms[extras] = _Room(self._library, self._line, self._dtype, extras)
        return self._rooms[extras]

    def gradient(self, params: Tensor, x: Tensor, y: Tensor, scale: float, into: Tensor) -> Tensor:
        """`into` (P,) <- scale times the gradient of the batch's mean loss, but for gaps; the outputs.

        Raises:
            As `train`.
        """
        lead = self._fit(x, y)
        self._check_numbers(params, (self._size,), "params")
        self._check_numbers(into, (self._size,), "into")
        _check_examples(x, y, len(x))
        outputs = self._outputs(len(x), lead)
        x, y = self._contiguous(x, y)
        room, capacity = self._room(OWN_STEPPED).of(len(x))
        classes = self._library.gradient(
            ctypes.byref(self._line),
            _at(params),
            _at(x),
            _at(y),
            ctypes.c_int64(len(x)),
            ctypes.c_double(scale),
            _at(into),
            _at(outputs),
            ctypes.c_int64(capacity),
            room,
        )
        return self._checked(outputs, bool(classes))

    def _fit(self, x: Tensor, y: Tensor) -> tuple[int, ...]:
        """Set the rows of an example; the axes between batch and features."""
        dense, numbers = self._dense, math.prod(x.shape[1:])
        lead = () if dense.flattens else tuple(x.shape[1:-1])
        places = math.prod(lead)
        if numbers != places * dense.widths[0] or x.dim() < 2:
            raise RuntimeError(f"Examples of shape {tuple(x.shape[1:])} do not fit {dense.widths[0]} inputs.")
        targets = places * (dense.widths[-1] if self._squared else 1)
        if math.prod(y.shape[1:]) != targets:
            raise RuntimeError(f"Targets of shape {tuple(y.shape[1:])} do not fit: an example has {targets}.")
        if places != self._line.places:
            self._line.places = places
            self._rooms = {}
        return lead

    def _check_numbers(self, tensor: Tensor, shape: Sequence[int], name: str) -> None:
        """Raise RuntimeError unless the kernel may take the tensor's address for so many numbers."""
        operands.check("The kernel", name, tensor, shape, self._dtype)
        if not tensor.is_contiguous():
            raise RuntimeError(f"The kernel needs contiguous {name}, but got strides {tensor.stride()}.")

    def _contiguous(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        targets = y.to(self._dtype if self._squared else torch.int64)
        return x.to(self._dtype).contiguous(), targets.contiguous()

    def outputs_of(self, x: Tensor, y: Tensor) -> int:
        """Return the number of outputs for each of these examples."""
        return math.prod(self._fit(x, y)) * self._dense.widths[-1]

    def _outputs(self, visits: int, lead: tuple[int, ...]) -> Tensor:
        return torch.empty((visits, *lead, self._dense.widths[-1]), dtype=self._dtype)

    def _checked(self, outputs: Tensor, all_are_classes: bool) -> Tensor:
        if not all_are_classes:
            raise IndexError(f"A target is not a class: it is not in 0..{self._dense.widths[-1] - 1}.")
        return outputs


class _Room:
    """Memory with the same extras, made anew where a batch has more examples than any before."""

    def __init__(self, kernel: ctypes.CDLL, line: _Line, dtype: torch.dtype, extras: int) -> None:
        self._kernel, self._line, self._dtype, self._extras = kernel, line, dtype, extras
        self._memory = torch.zeros(0, dtype=dtype)
        self._capacity = 0

    def of(self, examples: int) -> tuple[ctypes.c_void_p, int]:
        """Where it begins, and for how many examples of a batch it is."""
        if examples > self._capacity:
            extras = ctypes.c_int64(self._extras)
            numbers = self._kernel.room_for(ctypes.byref(self._line), ctypes.c_int64(examples), extras)
            self._memory = torch.zeros(numbers + ALIGNMENT, dtype=self._dtype)
            self._capacity = examples
        address = self._memory.data_ptr()
        return ctypes.c_void_p(-(-address // ALIGNMENT) * ALIGNMENT), self._capacity


def _check_line(dense: Dense, layout: Layout) -> None:
    """Raise ModelError unless the parameters of the line have the shapes that its widths say."""
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    pairs = zip(dense.weights, dense.biases, dense.widths[:-1], dense.widths[1:], strict=True)
    for weight, bias, inputs, outputs in pairs:
        for name, shape in ((weight, (outputs, inputs)), (bias, (outputs,))):
            if name is not None and shapes.get(name) != shape:
                raise ModelError(f"{name} must have the shape {shape}, as its layer says, but has {shapes.get(name)}.")


def _check_examples(x: Tensor, y: Tensor, rows: int) -> None:
    """Raise RuntimeError unless there are so many examples, with a target for each."""
    if not len(x) == len(y) == rows:
        raise RuntimeError(f"{rows} examples were expected, but there are {len(x)}, and {len(y)} targets.")


def _check_batches(examples: Int64s, batches: ClientBatches) -> None:
    """Raise RuntimeError unless every visit is of an example that its client has."""
    order, bounds, steps = batches.order, batches.bounds, batches.steps
    arrays = (examples, order, bounds, steps)
    plain = all(array.dtype == np.int64 and array.ndim == 1 and array.flags.c_contiguous for array in arrays)
    if plain and len(steps) == len(examples) and (steps >= 0).all() and len(bounds) == steps.sum() + len(steps):
        last = np.cumsum(steps + 1) - 1
        growth = np.diff(bounds, prepend=0)
        growth[last[:-1] + 1] = bounds[last[:-1] + 1]
        visits = bounds[last]
        starts = bounds[last - steps]
        whole = (growth >= 0).all() and not starts.any() and visits.sum() == len(order)
        if whole and ((order >= 0) & (order < np.repeat(examples, visits))).all():
            return
    raise RuntimeError("Batches do not fit: a visit is of no example of its client.")


def _check_windows(ranges: Int64s, counts: Int64s, steps: Int64s) -> None:
    """Raise RuntimeError unless every window is of local steps that its client takes, in order and apart."""
    plain = all(array.dtype == np.int64 and array.flags.c_contiguous for array in (ranges, counts))
    shaped = plain and ranges.shape == (len(ranges), 2) and counts.shape == steps.shape
    if shaped and (counts >= 0).all() and counts.sum() == len(ranges):
        owners = np.repeat(np.arange(len(counts)), counts)
        first, stop = ranges.T
        # Of a client's first window: 0.
        before = np.where(np.diff(owners, prepend=-1) == 0, np.roll(stop, 1), 0)
        if ((first >= before) & (first < stop) & (stop <= steps[owners])).all():
            return
    raise RuntimeError("Windows do not fit: they are not in order, apart, and within their client's local steps.")


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _row(tensor: Tensor, at: int, rows: int) -> ctypes.c_void_p:
    """Where part `at` of `rows` equal parts begins."""
    return ctypes.c_void_p(tensor.data_ptr() + at * (tensor.nbytes // rows))


def _of(array: Int64s) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
