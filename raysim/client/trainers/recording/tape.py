"""Records the operators of one local step: what torch carries out below autograd, in order, with its operands.

The step is carried out once, under a mode that sees every operator of the forward pass and of autograd's backward pass.
Operands are slots: the batch, the weights, other tensors of the module (constants), and results of earlier operators.

A step whose course depends on values cannot be recorded: it would repeat what the first batch asked for. Whatever reads
a value (item, tolist, a branch on a tensor) or makes a shape from values (nonzero, a boolean index) ends the attempt.

A forward's Python code runs when it is recorded, not in every step: what it prints, it prints then. What it depends on
outside of the module is seen where it changes from one recording to the next (`another_point.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

READS_VALUES = frozenset(
    {
        "numpy",
        "tolist",
        "__array__",
        "__dlpack__",
        "data_ptr",
        "storage",
        "untyped_storage",
        "__reduce_ex__",
        "__repr__",
        "__format__",
        "apply_",
        "map_",
        "map2_",
    }
)
"""Calls on a tensor that read it, or hand its memory or numbers out, without an operator that a mode sees. A text of it
is made with all modes off."""

_aten = torch.ops.aten
_UNTAGGED = frozenset({_aten._pack_padded_sequence.default, _aten._padded_dense_to_jagged_forward.default})
"""Operators whose results have shapes that depend on values, though torch does not say so."""

_AS_VIEWS = {
    _aten.transpose_.default: _aten.transpose.int,
    _aten.squeeze_.default: _aten.squeeze.default,
    _aten.squeeze_.dim: _aten.squeeze.dim,
    _aten.squeeze_.dims: _aten.squeeze.dims,
    _aten.unsqueeze_.default: _aten.unsqueeze.default,
    _aten.t_.default: _aten.t.default,
}
"""What makes a view, by what turns a tensor into that view in place."""


class NotRecorded(Exception):
    """What a step does that no recording can repeat; the text goes on behind "its local step"."""


@dataclass(frozen=True)
class Slot:
    """An operand: the number of a tensor."""

    number: int


@dataclass(frozen=True)
class Op:
    """A call of an operator.

    function: the overload. args, kwargs: with a Slot in the place of each tensor. results: Slot or None, in the
    structure of what the operator returns.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: Any

    # Every pass over a program asks for both.
    @cached_property
    def operands(self) -> tuple[Slot, ...]:
        """All slots among the arguments."""
        return tuple(slots_of((self.args, tuple(self.kwargs.values()))))

    @cached_property
    def result_slots(self) -> tuple[Slot, ...]:
        """All slots among the results."""
        return tuple(slots_of(self.results))


@dataclass
class Tape:
    """What was recorded.

    ops: in order. values: of every slot, as they were when the step was recorded. constants: slots that no operator
    made and that are not of the batch. literal: constants that a call such as torch.tensor(2.0) makes anew each time.
    refusal: the first.
    """

    ops: list[Op] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    constants: set[int] = field(default_factory=set)
    literal: set[int] = field(default_factory=set)
    refusal: NotRecorded | None = None
    _numbers: dict[int, int] = field(default_factory=dict)
    _kept: list[Tensor] = field(default_factory=list)

    def add(self, tensor: Tensor, value: Tensor | None = None) -> Slot:
        """A new slot for the tensor; `value` stands for it outside of autograd."""
        number = len(self.values)
        self.values.append(tensor if value is None else value)
        # The tensor itself is kept too: its identity must not be used again.
        self._kept.append(tensor)
        self._numbers[id(tensor)] = number
        return Slot(number)

    def slot(self, tensor: Tensor) -> Slot:
        """The tensor's slot; one that nobody made is a constant."""
        number = self._numbers.get(id(tensor))
        if number is None:
            new_slot = self.add(tensor)
            self.constants.add(new_slot.number)
            return new_slot
        return Slot(number)

    def result(self, tensor: Tensor) -> Slot:
        """The slot of what an operator returned: a new one, unless it returned its operand."""
        number = self._numbers.get(id(tensor))
        return self.add(tensor) if number is None else Slot(number)

    def turned(self, tensor: Tensor, before: Tensor) -> Slot:
        """The new slot of what an operator turned into another view of its memory; `before` is as it was."""
        self.values[self._numbers[id(tensor)]] = before
        return self.add(tensor)

    def refuse(self, reason: str) -> NotRecorded:
        """Note why the step cannot be recorded: a forward may swallow what is raised."""
        self.refusal = self.refusal or NotRecorded(reason)
        return self.refusal


def record(step: Callable[[], Any], tape: Tape) -> Any:
    """Carry the step out and put its operators on the tape, which knows the batch and the weights; return its result.

    Raises:
        NotRecorded: says why.
    """
    try:
        # A script's search for NaN reads each gradient, which is no course of the module's.
        with torch.autograd.set_detect_anomaly(False), _NoReading(tape), _Recorder(tape):
            return step()
    except Exception as error:
        _forget_compilation(error)
        raise
    finally:
        if tape.refusal is not None:
            raise tape.refusal


def _forget_compilation(error: Exception) -> None:
    """Have torch forget that it could not compile something under a mode: without one it would refuse it, too.

    torch.cond and its like are compiled where they are called, and take no mode that they do not know.
    """
    if (compiler := sys.modules.get("torch._dynamo")) is None:
        return
    if isinstance(error, NotImplementedError) or type(error).__module__.startswith(compiler.__name__):
        compiler.reset()


class _Recorder(TorchDispatchMode):
    """Puts every operator on a tape."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler at the first call, for a second.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tags, tape = func.tags, self._tape
        if torch.Tag.data_dependent_output in tags or func is torch.ops.aten.equal.default:
            raise tape.refuse("reads a value of a tensor, on which its course may depend")
        operands = map_tensors((args, kwargs), tape.slot)
        if torch.Tag.inplace_view in tags:
            return self._turned(func, args, *operands)
        if func in _UNTAGGED or (torch.Tag.dynamic_output_shape in tags and not _by_position(func, args)):
            raise tape.refuse(f"calls {func.name()}, whose result has a shape that depends on values")
        results = func(*args, **kwargs)
        if not func.is_view and (layouts := _layouts(results) - {torch.strided}):
            made = ", ".join(sorted(map(str, layouts)))
            raise tape.refuse(f"makes a tensor of {made}, and how many numbers that has may depend on values")
        if func is torch.ops.aten.lift_fresh.default:
            tape.literal.add(operands[0][0].number)
        tape.ops.append(Op(func, operands[0], operands[1], map_tensors(results, tape.result)))
        return results

    def _turned(self, func: Any, args: Any, slots: Any, named: Any) -> Any:
        """Carry out what changes a tensor's shape in place, and record the view that it amounts to."""
        tape, slot = self._tape, slots[0]
        if func not in _AS_VIEWS or not any(slot in op.result_slots and slot not in op.operands for op in tape.ops):
            raise tape.refuse(f"calls {func.name()}, which changes a tensor's shape in place")
        before = args[0].detach()
        func(*args, **named)
        tape.ops.append(Op(_AS_VIEWS[func], slots, named, tape.turned(args[0], before)))
        return args[0]


def _layouts(results: Any) -> set[torch.layout]:
    found: set[torch.layout] = set()
    map_tensors(results, lambda one: found.add(one.layout))
    return found


def _by_position(func: Any, args: Any) -> bool:
    """Whether it is an index of positions, not of truth values: only the number of those that are true is a value."""
    if func is not _aten.index.Tensor:
        return False
    return not any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])


class _NoReading(TorchFunctionMode):
    """Refuses calls that read a tensor's values past the operators."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        # tensor_split reads where to split from a tensor's memory.
        if name in READS_VALUES or (name == "tensor_split" and _holds_tensor((args[1:], kwargs))):
            raise self._tape.refuse(f"calls {name} of a tensor, on whose values its course may depend")
        return func(*args, **(kwargs or {}))


def _holds_tensor(tree: Any) -> bool:
    found: list[Tensor] = []
    map_tensors(tree, found.append)
    return len(found) > 0


def map_tensors(tree: Any, function: Callable[[Tensor], Any]) -> Any:
    """The tree of tuples, lists and dicts with each tensor mapped."""
    return _mapped(tree, Tensor, function)


def map_slots(tree: Any, function: Callable[[Slot], Any]) -> Any:
    """The tree of tuples, lists and dicts with each slot mapped."""
    return _mapped(tree, Slot, function)


_LEAVES = frozenset({NoneType, bool, int, float, str})
"""The most frequent types that hold nothing: recognised at once, because whole tapes are mapped many times."""


def _mapped(tree: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    if type(tree) in _LEAVES:
        return tree
    if isinstance(tree, kind):
        return function(tree)
    if isinstance(tree, tuple):
        return tuple([_mapped(one, kind, function) for one in tree])
    if isinstance(tree, list):
        return [_mapped(one, kind, function) for one in tree]
    if isinstance(tree, dict):
        return {key: _mapped(one, kind, function) for key, one in tree.items()}
    return tree


def slots_of(tree: Any) -> Sequence[Slot]:
    """All slots in a tree, in order."""
    found: list[Slot] = []
    map_slots(tree, found.append)
    return found
