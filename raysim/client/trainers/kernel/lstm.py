"""An LSTM over all places of texts, forward and backward (lstm.c).

Products of inputs with weights, and the gradients of weights, are not made here: they are products over all places at
once. Forward and backward pass with these, time here over the time of oneDNN's kernel for all places: 10 texts of 20
places, 16 units .22, 64 units .31; 4 texts of 80 places, 128 units .57, 256 units .72, and .81 where the layer below
has 256 units too; 16 texts of 20 places, 670 units .81 (Intel Xeon with AVX-512, beside other work).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from raysim.client.trainers.kernel.operands import address, check, int64s
from raysim.client.trainers.kernel.vectorised import vectorised
from raysim.storage.compiled_c import library

SOURCE = vectorised("lstm.c")

_GATES = 4


class CompiledLstm:
    """The passes of one layer in one direction, on one thread, with memory that is used again.

    With T places, B examples, H units, gates in torch's order i, f, g, o, and "before" the place behind where it goes
    `backwards` over the places:

        i, f, o = s(a), g = tanh(a), a = added + U h_before;  c = f c_before + i g;  h = o tanh(c)

    dtype: of all numbers.

    Raises:
        NoLibraryError: this machine has no compiled library.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._library = library(SOURCE, dtype)
        self._library.room_for.restype = ctypes.c_int64
        self._dtype, self._room = dtype, torch.empty(0, dtype=dtype)

    def forward(
        self, added: Tensor, u: Tensor, h: Tensor, c: Tensor, backwards: bool, into: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        """Return states (T + 1, B, H), gates (T, B, 4 H), cells (T + 1, B, H) and their tanh (T, B, H).

        Args:
            added: (T, B, 4 H), by inputs and biases.
            u: (4 H, H).
            h, c: (B, H), before all places: the first of states and cells, or the last where it goes backwards.
            into: contiguous tensors in which the results are put; empty: fresh ones.

        Raises:
            RuntimeError: operands that do not fit one another, or are not of this dtype on the CPU.
        """
        shape = self._shape(added, u)
        places, examples, units = shape
        self._check(h, (examples, units), "states")
        self._check(c, (examples, units), "cells")
        every = places + 1, examples, units
        states, gates, cells, squashed = self._made((every, added.shape, every, shape), into)
        first = places if backwards else 0
        states[first], cells[first] = h, c
        # Names hold the copies for as long as the library works on them.
        added, u = added.contiguous(), u.contiguous()
        numbers = self._numbers(shape, backwards)
        self._library.forward(numbers, None, *map(address, (u, added, gates, states, cells, squashed, self._room)))
        return states, gates, cells, squashed

    def backward(
        self,
        dy: Tensor | None,
        dh: Tensor | None,
        dc: Tensor | None,
        kept: Sequence[Tensor],
        u: Tensor,
        backwards: bool,
        into: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """Return the gradients of `added`, and of the states and cells before all places.

        Args:
            dy: (T, B, H), of the states; dh, dc: (B, H), of the last state and cell as results of their own. None: 0.
            kept: gates, cells and their tanh, as `forward` returned them.
            u, backwards, into: as there.

        Raises:
            RuntimeError: as there.
        """
        gates, cells, squashed = kept
        shape = self._shape(gates, u)
        places, examples, units = shape
        self._check(cells, (places + 1, examples, units), "cells")
        self._check(squashed, shape, "squashed cells")
        dy = gates.new_zeros(shape) if dy is None else dy
        self._check(dy, shape, "gradients")
        end = examples, units
        da, *ends = self._made((gates.shape, end, end), into)
        for to, one in zip(ends, (dh, dc), strict=True):
            if one is None:
                to.zero_()
            else:
                self._check(one, end, "gradients")
                to.copy_(one)
        u, gates, cells, squashed, dy = (one.contiguous() for one in (u, gates, cells, squashed, dy))
        numbers = self._numbers(shape, backwards)
        self._library.backward(numbers, None, *map(address, (u, gates, cells, squashed, dy, da, *ends, self._room)))
        return da, ends[0], ends[1]

    def forward_packed(self, added: Tensor, u: Tensor, reaching: Sequence[int]) -> tuple[Tensor, ...]:
        """The same of texts of several lengths, from zeros: states, gates, cells and their tanh.

        States and cells are (B + N, H), gates (N, 4 H), the tanh (N, H). Rows are by place, of a place those of the
        texts that reach it, the longest first; those of the first state come before all.

        Args:
            added: (N, 4 H).
            u: (4 H, H).
            reaching: how many texts reach each place, B of them the first; none more than the place before, N together.

        Raises:
            RuntimeError: as `forward`, or numbers that do not fall.
        """
        numbers, counts = self._packed(added, u, reaching)
        (rows, _), units, texts = added.shape, u.shape[1], reaching[0]
        states, cells = (torch.empty(texts + rows, units, dtype=self._dtype) for _ in range(2))
        gates, squashed = torch.empty_like(added), torch.empty(rows, units, dtype=self._dtype)
        states[:texts], cells[:texts] = 0, 0
        added, u = added.contiguous(), u.contiguous()
        self._library.forward(numbers, counts, *map(address, (u, added, gates, states, cells, squashed, self._room)))
        return states, gates, cells, squashed

    def backward_packed(self, dy: Tensor, kept: Sequence[Tensor], u: Tensor, reaching: Sequence[int]) -> Tensor:
        """The gradient of `added`, (N, 4 H), by that of the states behind each place.

        Args:
            dy: (N, H).
            kept: gates, cells and their tanh, as `forward_packed` returned them.
            u, reaching: as there.

        Raises:
            RuntimeError: as there.
        """
        gates, cells, squashed = kept
        numbers, counts = self._packed(gates, u, reaching)
        rows, units = len(gates), u.shape[1]
        self._check(cells, (reaching[0] + rows, units), "cells")
        self._check(squashed, (rows, units), "squashed cells")
        self._check(dy, (rows, units), "gradients")
        da = torch.empty_like(gates)
        ends = [torch.zeros(reaching[0], units, dtype=self._dtype) for _ in range(2)]
        u, dy = u.contiguous(), dy.contiguous()
        self._library.backward(numbers, counts, *map(address, (u, gates, cells, squashed, dy, da, *ends, self._room)))
        return da

    def _packed(
        self, gates: Tensor, u: Tensor, reaching: Sequence[int]
    ) -> tuple[ctypes.Array[ctypes.c_int64], ctypes.Array[ctypes.c_int64]]:
        """`Shape` of lstm.c, and what reaches each place."""
        falls = all(one >= other for one, other in pairwise(reaching))
        if u.dim() != 2 or not reaching or reaching[-1] < 1 or not falls:
            raise RuntimeError(f"Texts reach places in falling numbers, from 1 on, but got {list(reaching)}.")
        units = u.shape[1]
        self._check(u, (_GATES * units, units), "weights")
        self._check(gates, (sum(reaching), _GATES * units), "gates")
        if not gates.is_contiguous():
            raise RuntimeError(f"An LSTM reads contiguous gates, but got strides {gates.stride()}.")
        return self._numbers((len(reaching), reaching[0], units), backwards=False), int64s(reaching)

    def _made(self, shapes: Sequence[Sequence[int]], into: Sequence[Tensor]) -> list[Tensor]:
        """Where results go."""
        if not into:
            return [torch.empty(*shape, dtype=self._dtype) for shape in shapes]
        if len(into) != len(shapes):
            raise RuntimeError(f"An LSTM writes to {len(shapes)} tensors, but got {len(into)}.")
        for one, shape in zip(into, shapes, strict=True):
            self._check(one, shape, "results")
            if not one.is_contiguous():
                raise RuntimeError(f"An LSTM writes to contiguous tensors, but got strides {one.stride()}.")
        return list(into)

    def _numbers(self, shape: Sequence[int], backwards: bool) -> ctypes.Array[ctypes.c_int64]:
        """`Shape` of lstm.c, for which there is room then."""
        numbers = (ctypes.c_int64 * 4)(*shape, backwards)
        room = self._library.room_for(numbers)
        if room > len(self._room):
            self._room = torch.empty(room, dtype=self._dtype)
        return numbers

    def _shape(self, gates: Tensor, u: Tensor) -> tuple[int, int, int]:
        if gates.dim() != 3 or u.dim() != 2 or min(*gates.shape, *u.shape) < 1:
            got = f"{tuple(gates.shape)} and {tuple(u.shape)}"
            raise RuntimeError(f"Gates have three axes and weights two, none of them empty, but got {got}.")
        places, examples, _ = gates.shape
        units = u.shape[1]
        self._check(u, (_GATES * units, units), "weights")
        self._check(gates, (places, examples, _GATES * units), "gates")
        return places, examples, units

    def _check(self, tensor: Tensor, shape: Sequence[int], name: str) -> None:
        check("An LSTM", name, tensor, shape, self._dtype)
