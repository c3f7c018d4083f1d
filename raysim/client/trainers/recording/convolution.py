"""Lets a recorded step make the gradient of large kernels over small maps as a product.

With y = W cols(x), where cols(x) holds what each position of the map sees (im2col), the gradient of W is g cols(x)'.
torch's own operator (oneDNN) makes it slowly where a kernel has millions of numbers and a map a few positions, as in
the last layers of a ResNet. And a product can write the weight's step by itself (`update.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from raysim.client.trainers.recording.simplify import Program, free_slots
from raysim.client.trainers.recording.tape import Op, Slot

_aten = torch.ops.aten

LEAST_NUMBERS, MOST_POSITIONS = 1 << 20, 25
"""Of the kernel, and of the map behind it. The gradient of 512 x 512 x 3 x 3 over 20 maps of 3 x 3 takes 13 ms for 50,
over 5 x 5 55 for 69, over 6 x 6 as long; that of 512 x 256 x 3 x 3 over 3 x 3 7 for 14; that of 256 x 256 x 3 x 3 over
6 x 6 longer (AMD EPYC, Zen 4)."""


def as_products(program: Program, values: Sequence[Tensor], faster: Callable[[Op], bool]) -> Program:
    """Return the program with a product for each gradient of a kernel that gains by it.

    Args:
        program: simplified.
        values: of its slots, as they were recorded.
        faster: whether something else is faster still.
    """
    ops: list[Op] = []
    fresh = free_slots(program, values)
    for op in program.ops:
        if op.function is not _aten.convolution_backward.default or not _gains(op, values) or faster(op):
            ops.append(op)
            continue
        g, x, w, _, stride, padding, dilation, *_, mask = op.args
        of_input, gradient, of_bias = op.results
        if mask[0] or mask[2]:
            ops.append(replace(op, args=(*op.args[:-1], [mask[0], False, mask[2]]), results=(of_input, None, of_bias)))
        kernel = values[w.number].shape
        seen, seen_by_row, seen_flat, back, errors, errors_flat, product = (next(fresh) for _ in range(7))
        ops += [
            _op(_aten.im2col.default, (x, [*kernel[2:]], dilation, padding, stride), seen),
            _op(_aten.transpose.int, (seen, 0, 1), seen_by_row),
            _op(_aten.reshape.default, (seen_by_row, [prod(kernel[1:]), -1]), seen_flat),
            _op(_aten.t.default, (seen_flat,), back),
            _op(_aten.transpose.int, (g, 0, 1), errors),
            _op(_aten.reshape.default, (errors, [kernel[0], -1]), errors_flat),
            _op(_aten.mm.default, (errors_flat, back), product),
            _op(_aten.unflatten.int, (product, 1, [*kernel[1:]]), gradient),
        ]
    return replace(program, ops=tuple(ops))


def _op(function: torch._ops.OpOverload, args: tuple[object, ...], result: Slot) -> Op:
    return Op(function, args, {}, result)


def _gains(op: Op, values: Sequence[Tensor]) -> bool:
    g, _, w, _, _, _, _, transposed, _, groups, mask = op.args
    kernel, behind = values[w.number], values[g.number]
    plain = mask[1] and not transposed and groups == 1 and kernel.dim() == 4 and not kernel.is_cuda
    return plain and kernel.numel() >= LEAST_NUMBERS and prod(behind.shape[2:]) <= MOST_POSITIONS
