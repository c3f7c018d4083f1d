"""Lets a recorded step compute attention over short texts as products: a pure function on its operators.

With P = softmax(s q k' + mask) and z = P v, per head: dv = P' dz; dP = dz v'; dS = s P (dP - sum over the row of P dP);
dq = dS k; dk = dS' q. torch's own operators go over one block of each head at a time and compute P twice, which saves
memory where texts are long. Over short ones, products of all heads together are faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysim.client.trainers.recording.simplify import Program, free_slots
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten
_FORWARD = _aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class Gains(NamedTuple):
    """Where products are used: places of a text, and the width of a head. The same on all processors."""

    least_places: int
    most_places: int
    most_width: int


BY_TORCH = Gains(12, 32, 32)
"""Products of torch's. Forward and backward pass of 16 texts and 8 heads of width 12 take 360 us for 390 over 8 places,
280 for 550 over 16, 440 for 840 over 20, 790 for 1,280 over 32 and 4,390 for 2,910 over 48; of width 32 580 for 870
over 20 and 1,800 for 1,930 over 32 (AMD EPYC, Zen 4)."""

INTERPRETED = Gains(1, 48, 64)
"""Products of the interpreter, where they gain more on some processors than they lose on others. With vectors of 64
bytes a local step with torch's operators takes 1.36 times as long over 20 places, 1.14 over 32, 1.22 over 48 and 64,
1.15 over 96, 1.02 over 128; with heads of width 64 about 1.2. With vectors of 32 bytes 1.09, 1.03, .96, .89, .79 and
.71, and 1.04 with such heads (Intel Xeon, beside other work)."""


def as_products(program: Program, values: Sequence[Tensor], gains: Gains) -> Program:
    """Return the program with products for each attention that gains by them.

    Args:
        program: simplified.
        values: of its slots, as they were recorded.
        gains: of those who make the products.
    """
    backward = {op.args[5]: op for op in program.ops if op.function is _BACKWARD}
    free = free_slots(program, values)
    ops: list[Op] = []
    constants = dict(program.constants)
    heads: dict[Slot, _Heads] = {}
    for op in program.ops:
        if op.function is _FORWARD and _is_gain(op, backward.get(op.results[1]), program, values, gains):
            made = _Heads(op, values, free)
            constants[made.mask.number] = made.mask_values
            heads[op.results[1]] = made
            ops += made.forward()
        elif op.function is _BACKWARD and op.args[5] in heads:
            ops += heads[op.args[5]].backward(op)
        else:
            ops.append(op)
    return replace(program, ops=tuple(ops), constants=constants)


class _Heads:
    """The products of one attention: batch times heads is their first axis.

    Args:
        op: torch's operator.
        values: as they were recorded.
        free: slots that nobody has.
    """

    def __init__(self, op: Op, values: Sequence[Tensor], free: Iterator[Slot]) -> None:
        self._op, self._values, self._free = op, values, free
        q = values[op.args[0].number]
        self._shape = [*q.shape]
        self._flat = [q.shape[0] * q.shape[1], *q.shape[2:]]
        scale = op.kwargs.get("scale")
        self._scale = q.shape[-1] ** -0.5 if scale is None else scale
        self._q, self._k, self._v, self._shares, self.mask = (next(free) for _ in range(5))
        places = q.shape[2]
        self.mask_values = q.new_zeros(places, places)
        if len(op.args) > 4 and op.args[4]:
            self.mask_values.masked_fill_(torch.ones(places, places, dtype=torch.bool).triu(1), -inf)

    def forward(self) -> list[Op]:
        """z, in the layout of torch's."""
        ops = [
            _op(_aten.reshape.default, (slot, self._flat), made)
            for slot, made in zip(self._op.args[:3], (self._q, self._k, self._v), strict=True)
        ]
        keys, logits, z = (next(self._free) for _ in range(3))
        ops += [
            _op(_aten.transpose.int, (self._k, 1, 2), keys),
            Op(_aten.baddbmm.default, (self.mask, self._q, keys), {"alpha": self._scale}, logits),
            _op(_aten._softmax.default, (logits, -1, False), self._shares),
            _op(_aten.bmm.default, (self._shares, self._v), z),
        ]
        return [*ops, *self._laid_out(z, self._op.results[0])]

    def backward(self, op: Op) -> list[Op]:
        """dq, dk and dv, in the layouts of torch's."""
        dz, turned, dv, v, d_shares, unscaled, ds, dq, ds_turned, dk = (next(self._free) for _ in range(10))
        ops = [
            _op(_aten.reshape.default, (op.args[0], self._flat), dz),
            _op(_aten.transpose.int, (self._shares, 1, 2), turned),
            _op(_aten.bmm.default, (turned, dz), dv),
            _op(_aten.transpose.int, (self._v, 1, 2), v),
            _op(_aten.bmm.default, (dz, v), d_shares),
            _op(_aten._softmax_backward_data.default, (d_shares, self._shares, -1, self.mask_values.dtype), unscaled),
            _op(_aten.mul.Tensor, (unscaled, self._scale), ds),
            _op(_aten.bmm.default, (ds, self._k), dq),
            _op(_aten.transpose.int, (ds, 1, 2), ds_turned),
            _op(_aten.bmm.default, (ds_turned, self._q), dk),
        ]
        for made, recorded in zip((dq, dk, dv), op.results, strict=True):
            ops += self._laid_out(made, recorded)
        return ops

    def _laid_out(self, flat: Slot, recorded: Slot) -> list[Op]:
        """Axes in the order in which they lie in the recorded tensor: views that follow ask for it."""
        order = _order(self._values[recorded.number])
        back = [order.index(axis) for axis in range(4)]
        by_head, turned, copy = (next(self._free) for _ in range(3))
        return [
            _op(_aten.view.default, (flat, self._shape), by_head),
            _op(_aten.permute.default, (by_head, order), turned),
            Op(_aten.contiguous.default, (turned,), {}, copy),
            _op(_aten.permute.default, (copy, back), recorded),
        ]


def _is_gain(op: Op, backward: Op | None, program: Program, values: Sequence[Tensor], gains: Gains) -> bool:
    q, k, v = (values[slot.number] for slot in op.args[:3])
    is_plain = q.dtype in (torch.float32, torch.float64) and q.shape == k.shape == v.shape
    has_dropout = len(op.args) > 3 and op.args[3] != 0
    # A row of a mask of the user's own may forbid everything, where torch's operator has its own answer.
    has_mask = op.kwargs.get("attn_mask") is not None
    is_short = gains.least_places <= q.shape[-2] <= gains.most_places and q.shape[-1] <= gains.most_width
    if backward is None or not is_plain or has_dropout or has_mask or not is_short:
        return False
    readers = [one for one in program.ops if op.results[1] in one.operands]
    made = (op.results[0], *backward.results)
    return readers == [backward] and all(_is_dense(values[slot.number]) for slot in made)


def _order(tensor: Tensor) -> list[int]:
    """The axes as they lie in memory, the outermost first."""
    return sorted(range(tensor.dim()), key=lambda axis: (-tensor.stride()[axis], axis))


def _is_dense(tensor: Tensor) -> bool:
    return tensor.permute(_order(tensor)).is_contiguous()


def _op(function: torch._ops.OpOverload, args: tuple[Any, ...], result: Slot) -> Op:
    return Op(function, args, {}, result)
