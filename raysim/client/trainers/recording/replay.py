"""Turns a recorded step into a Python function: one line for each operator, called without autograd."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from raysim.client.trainers.recording.simplify import Program, shares_memory, storage
from raysim.client.trainers.recording.tape import Op, Slot
from raysim.client.trainers.recording.update import Product, WeightUpdates

Replay = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor | None]]
"""(x, y, alpha) -> outputs and losses; writes into the weights, or into their gradients."""

ScoredStep = Callable[[Tensor, Tensor, float], tuple[Tensor | None, ...]]
"""The same, or none, losses and hits, (rows,) each: what `Scores.keep` takes."""


def replay(
    program: Program,
    updates: WeightUpdates,
    batch: tuple[Slot, Slot],
    results: Sequence[Slot | None],
    written: Sequence[Tensor],
    keep: float,
) -> Replay:
    """Compile the step.

    Args:
        program, updates: see there.
        batch: slots of x and y.
        results: slots of what is returned: outputs and losses.
        written: what each weight's update is written to.
        keep: what that is multiplied with: 1 or 0.
    """
    source = _Source(program.constants)
    lines, last = updates.ops, _last_uses(updates, results)
    by_place: dict[int, list[Product]] = {}
    for product in updates.products:
        by_place.setdefault(product.place, []).append(product)
    for place in range(-1, len(lines)):
        if place >= 0:
            source.add_call(lines[place])
        for product in by_place.get(place, ()):
            name = source.constant(product.matrix(written[product.weight]))
            a, b = source.text(product.a), source.text(product.b)
            beta = "" if keep == 1 else ", beta=0"
            source.add(f"{name}.addmm_({a}, {b}, alpha=alpha{beta})")
        if dead := [source.text(slot) for slot in last.get(place, ()) if slot.number not in program.constants]:
            source.add(f"del {', '.join(dead)}")
    if updates.rest:
        places = source.constant([written[index] for index in updates.rest])
        values = f"[{', '.join(source.text(slot) for slot in updates.rest.values())}]"
        if keep == 1:
            source.add(f"{source.constant(torch._foreach_add_)}({places}, {values}, alpha=alpha)")
        else:
            source.add(f"{source.constant(torch._foreach_copy_)}({places}, {values})")
    if updates.unused and keep == 0:
        unused = source.constant([written[index] for index in updates.unused])
        source.add(f"{source.constant(torch._foreach_zero_)}({unused})")
    source.add(f"return ({''.join(f'{source.text(slot)}, ' for slot in results)})")
    made: Replay = source.function([*(source.text(slot) for slot in batch), "alpha"])
    return made


def in_place(ops: Sequence[Op], tensors: Callable[[Slot], Tensor], read: Collection[int]) -> Callable[[], None]:
    """Compile a function that carries operators out on tensors that stay, and leaves their results in others.

    Args:
        ops: in order, views among them.
        tensors: of each slot. Results that share memory when they are made share it there too.
        read: the memory, by `storage`, of the results that are read behind the function.
    """
    made: set[Slot] = set()
    carried_out = []
    for op in ops:
        # A view of what stays stays too.
        if made.intersection(op.operands) or not shares_memory(op, tensors):
            carried_out.append(op)
            if not hasattr(op.function, "into"):
                made.update(slot for slot in op.result_slots if slot not in op.operands)
    source = _Source({slot.number: tensors(slot) for op in carried_out for slot in op.operands if slot not in made})
    left: list[Slot] = []
    for op in carried_out:
        if hasattr(op.function, "into"):
            places = source.constant([tensors(slot) for slot in op.result_slots])
            source.add(f"{source.constant(op.function.into)}({', '.join([places, *map(source.text, op.args)])})")
            continue
        source.add_call(op)
        operands = {storage(tensors(slot)) for slot in op.operands}
        left += [slot for slot in op.result_slots if storage(tensors(slot)) in set(read) - operands]
    if left:
        places = source.constant([tensors(slot) for slot in left])
        source.add(f"{source.constant(torch._foreach_copy_)}({places}, [{', '.join(map(source.text, left))}])")
    function: Callable[[], None] = source.function([])
    return function


class _Source:
    """Lines of a function, and the names of what they use.

    held: tensors that stay, by the number of their slot.
    """

    def __init__(self, held: Mapping[int, Tensor]) -> None:
        self._held = held
        self._lines: list[str] = []
        self._names: dict[str, Any] = {}
        self._known: dict[int, str] = {}

    def constant(self, value: Any) -> str:
        """A name for a value."""
        if id(value) not in self._known:
            name = f"c{len(self._known)}"
            self._known[id(value)] = name
            self._names[name] = value
        return self._known[id(value)]

    def text(self, value: Any) -> str:
        """The value as an expression."""
        if isinstance(value, Slot):
            held = self._held.get(value.number)
            return f"v{value.number}" if held is None else self.constant(held)
        if isinstance(value, tuple):
            return f"({''.join(self.text(one) + ', ' for one in value)})"
        if isinstance(value, list):
            return f"[{', '.join(self.text(one) for one in value)}]"
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        return self.constant(value)

    def targets(self, results: Any, operands: set[Slot]) -> str:
        """What results are assigned to; nothing, where the operator returns its operand."""
        if isinstance(results, Slot):
            return "" if results in operands or results.number in self._held else self.text(results)
        if isinstance(results, tuple | list):
            return ", ".join(self.targets(one, operands) or "_" for one in results) + ","
        return "_"

    def add_call(self, op: Op) -> None:
        """A line that carries the operator out."""
        arguments = [self.text(value) for value in op.args]
        arguments += [f"{name}={self.text(value)}" for name, value in op.kwargs.items()]
        call = f"{self.constant(_callable(op))}({', '.join(arguments)})"
        targets = self.targets(op.results, set(op.operands))
        self.add(f"{targets} = {call}" if targets else call)

    def add(self, line: str) -> None:
        """One more line."""
        self._lines.append(line)

    def function(self, arguments: list[str]) -> Any:
        """The function of these arguments."""
        body = "\n    ".join(self._lines)
        code = f"def step({', '.join(arguments)}):\n    {body}\n"
        names = dict(self._names)
        exec(compile(code, "<recorded local step>", "exec"), names)
        names["step"].__doc__ = code
        return names["step"]


def _last_uses(updates: WeightUpdates, results: Sequence[Slot | None]) -> dict[int, list[Slot]]:
    """By place, what nobody uses behind it."""
    made = {slot for op in updates.ops for slot in op.result_slots}
    last: dict[Slot, int] = {}
    for place, op in enumerate(updates.ops):
        for slot in (*op.result_slots, *op.operands):
            last[slot] = place
    for product in updates.products:
        for slot in (product.a, product.b):
            last[slot] = max(last.get(slot, -1), product.place)
    by_place: dict[int, list[Slot]] = {}
    held = {*updates.rest.values(), *results}
    for slot, place in last.items():
        if slot in made and slot not in held:
            by_place.setdefault(place, []).append(slot)
    return by_place


def _callable(op: Op) -> Callable[..., Any]:
    """The quickest way to call an operator: torch's own binding where there is one, which parses arguments in C."""
    overload = op.function
    if not isinstance(overload, OpOverload):
        # It stands for one of torch's.
        return cast(Callable[..., Any], overload)
    if any(isinstance(value, list) and None in value for value in op.args):
        # A binding takes no list of tensors of which some are missing, as those of an index are.
        return cast(Callable[..., Any], overload)
    return _binding(overload)


@cache
def _binding(overload: Any) -> Callable[..., Any]:
    name = overload._schema.name.removeprefix("aten::")
    if overload._schema.name.startswith("aten::"):
        for place in (torch, torch._C._nn, torch.Tensor):
            found = getattr(place, name, None)
            if isinstance(found, BuiltinFunctionType | MethodDescriptorType):
                return cast(Callable[..., Any], found)
    return cast(Callable[..., Any], overload)
