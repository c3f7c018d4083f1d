"""Says whether a forward pass takes the course at one length of batch that two other lengths lead one to expect.

A module may look at the length of its batch, and do something else for one length than for all others. Its forward pass
shows that: it is carried out at that length, and its operators are compared with those that follow from the other two.
So is what is computed once, of a length alone, such as whether there are five examples: operators do not show it.
Then the gradients follow, too: autograd makes them of these operators, where it has the same nodes, unless Python code
takes part in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from raysim.client.trainers.loss_gradient import LossGradient
from raysim.client.trainers.recording.at_length import AtLength, pairs
from raysim.client.trainers.recording.instruction_list import NotInterpreted
from raysim.client.trainers.recording.simplify import computed_once
from raysim.client.trainers.recording.tape import Op, Slot, Tape, record
from raysim.client.trainers.recording.trial import unchanged, undone
from raysim.client.trainers.recording.weighted import Weighted, other_tensors
from raysim.models import memory


@dataclass(frozen=True)
class ForwardCourse:
    """The operators of a forward pass, and of the gradient of the loss at its outputs.

    ops: in order. constants: by slot, tensors that none of them made, or that are computed once of a length alone.
    literal: slots of constants that are made anew each time. nodes: of the backward pass, each by its name and the
    places of those behind it. backward_runs_code: Python code takes part in the backward pass.
    """

    ops: Sequence[Op]
    constants: Mapping[int, Tensor]
    literal: frozenset[int]
    nodes: Sequence[tuple[str, tuple[int | None, ...]]]
    backward_runs_code: bool


def course(weighted: Weighted, loss_gradient: LossGradient, x: Tensor, y: Tensor) -> ForwardCourse:
    """Carry the forward pass out on this batch, and leave tensors and generators as they were.

    Raises:
        NotRecorded: it reads values, or changes what the module holds.
        RuntimeError: of torch, such as of hooks of what is kept for the backward pass.
    """
    tape = Tape()
    with (
        undone([*weighted.state, weighted.keys, *other_tensors(weighted)]),
        unchanged(weighted.module) as check,
        torch.enable_grad(),
        _Hooks() as hooks,
        # The backward pass calls them, and no node shows that.
        torch.autograd.graph.disable_saved_tensors_hooks("hooks of what is kept for the backward pass"),
    ):
        batch = x.clone(), y.clone()
        for one in batch:
            tape.add(one)
        weights = [tape.add(*pair) for pair in zip(weighted.parameters, weighted.values, strict=True)]
        outputs: Tensor = record(lambda: weighted.forward(batch[0]), tape)
        with torch.no_grad():
            # What losses make at their first call is not part of a step.
            loss_gradient(outputs.detach(), y.clone())
            record(lambda: loss_gradient(outputs.detach(), batch[1]), tape)
        check()
    constants = {number: tape.values[number] for number in tape.constants} | computed_once(tape, weights)
    graph = _graph(outputs)
    has_code = hooks.are_set or any(isinstance(node, torch._C._FunctionBase) for node in graph)
    return ForwardCourse(tape.ops, constants, frozenset(tape.literal), _nodes(graph), has_code)


def follows(third: ForwardCourse, length: int, large: ForwardCourse, small: ForwardCourse, largest: int) -> bool:
    """Whether the third course, of batches of `length`, is what follows from those of `largest` examples and of one
    less."""
    at = AtLength(largest, length)
    try:
        expected = [(one, other, at.op(one, other)) for one, other in pairs(large.ops, small.ops)]
        return (
            all(
                _is_same(op, found) and _slots(one) == _slots(other)
                for (one, other, op), found in pairs(expected, third.ops)
            )
            and large.literal == small.literal == third.literal
            and large.nodes == small.nodes == third.nodes
            and large.constants.keys() == small.constants.keys() == third.constants.keys()
            and all(
                _is_same_tensor(at, one, small.constants[number], third.constants[number], number in large.literal)
                for number, one in large.constants.items()
            )
        )
    except (NotInterpreted, RuntimeError) as error:
        if memory.is_lacking(error):
            raise
        # Of torch: sizes that no tensor can have follow from the two.
        return False


class _Hooks(TorchFunctionMode):
    """Notes whether a hook may be set that the backward pass calls: on a tensor, or on a node, which a forward must ask
    a tensor for."""

    def __init__(self) -> None:
        super().__init__()
        self.are_set = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sets = getattr(func, "__name__", "") in _SET_HOOKS or getattr(func, "__self__", None) is _GRAD_FN
        self.are_set = self.are_set or sets
        return func(*args, **(kwargs or {}))


_SET_HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
_GRAD_FN: Any = torch.Tensor.grad_fn


def _graph(outputs: Tensor) -> dict[Any, int]:
    """All nodes of the backward pass, in an order that their links alone decide, and their places."""
    places: dict[Any, int] = {}
    left = [outputs.grad_fn]
    while left:
        node = left.pop()
        if node is not None and node not in places:
            places[node] = len(places)
            left.extend(parent for parent, _ in node.next_functions)
    return places


def _nodes(graph: Mapping[Any, int]) -> Sequence[tuple[str, tuple[int | None, ...]]]:
    return [(node.name(), tuple(graph.get(parent) for parent, _ in node.next_functions)) for node in graph]


def _slots(op: Op) -> tuple[Sequence[Slot], Any]:
    return op.operands, op.results


def _is_same(expected: Any, found: Any) -> bool:
    """Whether two operators, or arguments of them, are the same but for the last digits of a factor."""
    if isinstance(expected, Op) and isinstance(found, Op):
        return expected.function is found.function and _is_same(_parts(expected), _parts(found))
    if type(expected) is not type(found):
        return False
    if isinstance(expected, tuple | list):
        return len(expected) == len(found) and all(map(_is_same, expected, found))
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(_is_same(expected[key], found[key]) for key in expected)
    if isinstance(expected, float):
        # A factor that follows from the length is rounded where the forward computes it.
        return math.isclose(expected, found, rel_tol=1e-12) or (expected != expected and found != found)
    return bool(expected == found)


def _parts(op: Op) -> tuple[Any, ...]:
    return op.args, dict(op.kwargs), op.results


def _is_same_tensor(at: AtLength, large: Tensor, small: Tensor, found: Tensor, literal: bool) -> bool:
    tensors = (large, small, found)
    if any(one.layout != torch.strided for one in tensors):
        return large is small is found
    if literal:
        return all(one.dtype == large.dtype and torch.equal(one, large) for one in (small, found))
    expected = at.tensor(large, small)
    if (expected.dtype, expected.shape, expected.stride()) != (found.dtype, found.shape, found.stride()):
        return False
    # All are still there, so one place in memory means one tensor. Elsewhere lie constants of each length, such as ones
    # for all examples: a step of another length reads the first of the largest one's.
    return len({one.data_ptr() for one in tensors}) == 1 or all(
        torch.equal(large.as_strided(one.shape, one.stride()), one) for one in (small, found)
    )
