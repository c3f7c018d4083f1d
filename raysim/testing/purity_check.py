"""Follows the functions of a part: nothing that they are given is written to, and nothing global is drawn from.

A followed function is followed line by line, so that an error can name the line.
"""

from __future__ import annotations

import linecache
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from raysim.client.objective import ObjectiveAt
from raysim.client.optimizers.optimizer import ClientOptimizer
from raysim.cohort.sampler import Sampler
from raysim.errors import RaysimError
from raysim.server.aggregators.rule import Rule


class ContractError(RaysimError):
    """A part breaks an invariant; says which, and where."""


class Followed:
    """A function that raises ContractError where it writes to its arguments, or draws from a global generator.

    Args:
        function: of the part.
        name: of the function, for messages.
        writes: the numbers of the arguments that it may write to.
    """

    def __init__(self, function: Callable[..., Any], name: str, writes: Sequence[int] = ()) -> None:
        self._function, self._name, self._writes = function, name, frozenset(writes)

    def __call__(self, *given: Any) -> Any:
        """Call the function, and compare before and after each of its lines."""
        before = _values([None if place in self._writes else each for place, each in enumerate(given)])
        follower = _Follower(before, _code(self._function))
        outer = sys.gettrace()
        sys.settrace(follower.trace)
        try:
            returned = self._function(*given)
        finally:
            sys.settrace(outer)
        follower.look()
        if follower.found is not None:
            what, at = follower.found
            raise ContractError(f"{self._name} {what}{at}")
        return returned


def follow(part: Any, name: str) -> Any:
    """Return the part with every function in it followed; `name` is its own, for messages.

    Written to may be what belongs to the function: the vectors of a client optimizer's step, the state that a sampler's
    `learn` is given.
    """
    if isinstance(part, ClientOptimizer):
        step = Followed(part.step, f"{name}.step", writes=(0, 1, 2))
        return part._replace(init=Followed(part.init, f"{name}.init"), step=step)
    if isinstance(part, Sampler) and part.learn is not None:
        part = part._replace(learn=Followed(part.learn, f"{name}.learn", writes=(0,)))
    if isinstance(part, Rule):
        return replace(part, fn=Followed(part.fn, f"{name}.fn"))
    if isinstance(part, Followed):
        return part
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*(follow(value, f"{name}.{key}") for key, value in zip(part._fields, part, strict=True)))
    return Followed(part, name) if callable(part) and not isinstance(part, type) else part


class _Value(NamedTuple):
    """A tensor or array among the arguments, and a copy of it."""

    path: str
    now: Any
    copy: Any

    @property
    def is_same(self) -> bool:
        """Whether it was not written to."""
        if isinstance(self.now, Tensor):
            return torch.equal(self.now.nan_to_num(), self.copy.nan_to_num())
        return np.array_equal(self.now, self.copy)


class _Follower:
    """Finds the first line after which an argument, or a global generator, is not as it was."""

    def __init__(self, values: Sequence[_Value], code: CodeType | None) -> None:
        self._values, self._draws = values, _generators()
        self._file = None if code is None else code.co_filename
        self._line: tuple[str, int] | None = None if code is None else (code.co_filename, code.co_firstlineno)
        self.found: tuple[str, str] | None = None

    def trace(self, frame: FrameType, event: str, value: Any) -> Any:
        """What sys.settrace calls: look again before each line of the function's file."""
        if frame.f_code.co_filename != self._file or self.found is not None:
            return None
        if event in ("line", "return"):
            self.look()
            self._line = frame.f_code.co_filename, frame.f_lineno
        return self.trace

    def look(self) -> None:
        """Compare with what there was before."""
        if self.found is not None:
            return
        for each in self._values:
            if not each.is_same:
                self.found = f"writes to its argument {each.path}, which others read", self._at()
                return
        for name, before, after in zip(_GENERATORS, self._draws, _generators(), strict=True):
            if before != after:
                self.found = (
                    f"draws from {name}, whose bits depend on who drew before: take an addressed one",
                    self._at(),
                )
                return

    def _at(self) -> str:
        if self._line is None:
            return "."
        file, line = self._line
        return f" (file {file}, line {line}: {linecache.getline(file, line).strip()})."


_GENERATORS = ("torch's global generator", "NumPy's global generator", "Python's random module")


def _generators() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state(legacy=False)
    drawn = numpy["state"]["key"].tobytes(), numpy["state"]["pos"]
    return torch.get_rng_state().numpy().tobytes(), drawn, random.getstate()


def _values(given: Sequence[Any]) -> list[_Value]:
    return [each for place, value in enumerate(given) for each in _tensors_in(value, str(place))]


def _tensors_in(value: Any, path: str) -> Iterator[_Value]:
    """Every tensor and array in an argument, with its path."""
    if isinstance(value, Tensor):
        yield _Value(path, value.detach(), value.detach().clone())
    elif isinstance(value, np.ndarray):
        yield _Value(path, value, value.copy())
    elif isinstance(value, nn.Module):
        # Buffers such as running means are written by the module itself.
        for name, parameter in value.named_parameters():
            yield from _tensors_in(parameter, f"{path}.{name}")
    elif isinstance(value, ObjectiveAt):
        yield from _tensors_in(value.broadcast, f"{path}.broadcast")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _tensors_in(each, f"{path}[{key!r}]")
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for key, each in zip(value._fields, value, strict=True):
            yield from _tensors_in(each, f"{path}.{key}")
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_in(getattr(value, field.name), f"{path}.{field.name}")


def _code(function: Any) -> CodeType | None:
    """Where the function is written: what a partial or an object calls."""
    while hasattr(function, "func"):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(vars(type(function)).get("__call__"), "__code__", None)
    return code if isinstance(code, CodeType) else None
