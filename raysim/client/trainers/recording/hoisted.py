"""Which operators torch carries out before the interpreter begins: each pause of the interpreter costs some time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from raysim.client.trainers.recording.simplify import draws, storage, writes
from raysim.client.trainers.recording.tape import Op, Slot


def hoisted(
    ops: Sequence[Op], unknown: Collection[Op], tensors: Callable[[Slot], Tensor], of_weights: Collection[int]
) -> tuple[Op, ...]:
    """Return what may come first, in order: unknown operators that no weight leads to, and what these depend on.

    Args:
        ops: of a step, in order.
        unknown: those of them that the interpreter does not know.
        tensors: of each slot, as the operators made them.
        of_weights: the memory, by `storage`, of the weights.
    """

    def memory(slots: Sequence[Slot]) -> set[int]:
        return {storage(tensors(slot)) for slot in slots} - {0}

    follows, free = set(of_weights), set[int]()
    for op in ops:
        if follows & memory(op.operands):
            follows |= memory((*op.result_slots, *writes(op)))
        else:
            free.add(id(op))
    first, needed = set[int](), set[int]()
    wanted = {id(op) for op in unknown}
    for op in reversed(ops):
        # Whatever made, or changed, what torch reads: torch itself.
        if id(op) in free and (id(op) in wanted or memory((*op.result_slots, *writes(op))) & needed):
            first.add(id(op))
            needed |= memory((*op.operands, *op.result_slots))
    if any(id(op) in first for op in ops if draws(op)) and any(id(op) not in first for op in ops if draws(op)):
        return ()
    for at, op in enumerate(ops):
        changed = memory(writes(op)) if id(op) in first else set()
        if any(changed & memory(one.operands) for one in ops[:at] if changed and id(one) not in first):
            return ()
    return tuple(op for op in ops if id(op) in first)
