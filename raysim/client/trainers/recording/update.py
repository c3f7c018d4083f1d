"""Lets a recorded step write what it makes: into <- keep into + alpha gradient, for every weight.

Where the gradient is a matrix product, the product itself writes (`addmm_`): the gradient is never stored, and a pass
over the weight's memory is saved. Everything else is written by one call for all weights. A weight is written to only
after the last operator that reads it, as the gradient of what lies before it needs the value of this step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.client.trainers.recording.simplify import Program, writes
from raysim.client.trainers.recording.tape import Op, Slot

_MM = torch.ops.aten.mm.default
_RESHAPED = (torch.ops.aten.t.default, torch.ops.aten.unflatten.int)


@dataclass(frozen=True)
class Product:
    """into <- keep into + alpha a b, which an operator makes in the place of the gradient.

    place: index of the operator behind which it stands. weight: index of the weight. matrix: from the weight to the
    matrix that the product is.
    """

    place: int
    weight: int
    a: Slot
    b: Slot
    matrix: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class WeightUpdates:
    """What to write: products inside of the program, and the other gradients, by the weight's index, at its end.

    unused: indices of the weights that the loss does not depend on.
    """

    ops: tuple[Op, ...]
    products: tuple[Product, ...]
    rest: Mapping[int, Slot]
    unused: tuple[int, ...]


def updates(
    program: Program, weights: Sequence[Slot], gradients: Sequence[Slot | None], kept: Sequence[Slot]
) -> WeightUpdates:
    """Find the gradients that are products, and where each may be made.

    Args:
        program: simplified.
        weights: the slots of the weights.
        gradients: of each weight; None: the loss does not depend on it.
        kept: other slots that are asked for.
    """
    made_by = {slot: op for op in program.ops for slot in op.result_slots}
    uses: dict[Slot, int] = {}
    for op in program.ops:
        for slot in op.operands:
            uses[slot] = uses.get(slot, 0) + 1
    for slot in (*kept, *(slot for slot in gradients if slot is not None)):
        uses[slot] = uses.get(slot, 0) + 1
    last_read: dict[int, int] = {}
    for place, op in enumerate(program.ops):
        for slot in op.operands:
            if slot.number in program.roots:
                last_read[program.roots[slot.number]] = place
    written = {slot for op in program.ops for slot in writes(op)}

    def may_wait(product: Op) -> bool:
        # It is made later than it was recorded: what it reads must still be what it was.
        return not any(slot.number in program.roots or slot in written for slot in product.operands)

    found: dict[int, tuple[Op, Op | None]] = {}
    for index, gradient in enumerate(gradients):
        if gradient is None or uses[gradient] != 1 or gradient not in made_by:
            continue
        last = made_by[gradient]
        reshaped = last if last.function in _RESHAPED and uses[last.args[0]] == 1 else None
        product = last if reshaped is None else made_by.get(last.args[0])
        if product is not None and product.function is _MM and may_wait(product):
            found[index] = product, reshaped
    gone = {id(op) for pair in found.values() for op in pair if op is not None}
    position: dict[int, int] = {}
    kept_ops: list[Op] = []
    places: dict[int, int] = {}
    for op in program.ops:
        if id(op) in gone:
            position[id(op)] = len(kept_ops) - 1
        else:
            kept_ops.append(op)
    # Places count the operators that stay.
    stays = -1
    for place, op in enumerate(program.ops):
        stays += id(op) not in gone
        places[place] = stays
    products = tuple(
        Product(
            max(position[id(product)], places[last_read.get(weights[index].number, 0)] if program.ops else -1),
            index,
            product.args[0],
            product.args[1],
            _matrix(reshaped),
        )
        for index, (product, reshaped) in found.items()
    )
    rest = {i: slot for i, slot in enumerate(gradients) if slot is not None and i not in found}
    unused = tuple(i for i, slot in enumerate(gradients) if slot is None)
    return WeightUpdates(tuple(kept_ops), products, rest, unused)


def _matrix(reshaped: Op | None) -> Callable[[Tensor], Tensor]:
    """From the weight to the product, where this makes the gradient of the product."""
    if reshaped is None:
        return lambda weight: weight
    return Tensor.t if reshaped.function is _RESHAPED[0] else lambda weight: weight.flatten(1)
