"""Generators of random numbers that functions and objects of a script hold, and what state they are in.

Draws move a generator on even where they change no result yet.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch

Generator = torch.Generator | np.random.Generator | np.random.BitGenerator | np.random.RandomState | random.Random

GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
"""The classes of generators of torch, NumPy and Python."""


def generator_state(generator: Generator) -> Any:
    """Return the state, to be compared with `==`.

    >>> rng = random.Random(1)
    >>> before = generator_state(rng)
    >>> before == generator_state(rng), rng.random() > 1, before == generator_state(rng)
    (True, False, False)
    """
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        # A generator of the system has none.
        return None if isinstance(generator, random.SystemRandom) else generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    return _plain(_bits_of(generator).state)


def generator_restorer(generator: Generator) -> Callable[[], object]:
    """Return a function that puts the generator's state back."""
    if isinstance(generator, torch.Generator):
        return partial(generator.set_state, generator.get_state())
    if isinstance(generator, random.Random):
        if isinstance(generator, random.SystemRandom):
            return lambda: None
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return partial(generator.set_state, generator.get_state(legacy=False))
    bits = _bits_of(generator)
    return partial(setattr, bits, "state", bits.state)


def _bits_of(generator: np.random.Generator | np.random.BitGenerator) -> np.random.BitGenerator:
    return generator.bit_generator if isinstance(generator, np.random.Generator) else generator


def _plain(state: Any) -> Any:
    """Arrays as bytes, which are compared as a whole."""
    if isinstance(state, np.ndarray):
        return state.tobytes()
    return {key: _plain(value) for key, value in state.items()} if isinstance(state, dict) else state


class OwnGenerators:
    """The generators that the holders hold, with their states at this moment.

    Args:
        holders: functions and objects, which are looked into: what is around a function and what it names, attributes,
            classes, containers.
    """

    def __init__(self, *holders: object) -> None:
        self._stood = [(generator, generator_state(generator)) for generator in found(*holders)]
        self._undo = self._restorers()

    def drew(self) -> bool:
        """Return whether one of them has moved on."""
        return any(generator_state(generator) != state for generator, state in self._stood)

    @contextmanager
    def as_they_stood(self) -> Iterator[None]:
        """Put them back to where they stood for the block, and behind it to where they are now."""
        undo = self._restorers()
        for put_back in self._undo:
            put_back()
        try:
            yield
        finally:
            for put_back in undo:
                put_back()

    def _restorers(self) -> list[Callable[[], object]]:
        return [generator_restorer(generator) for generator, _ in self._stood]


MOST_INSIDE = 1_000
"""Elements of a container that is looked into."""

MOST = 20_000
"""Objects that are looked at."""

NO_SCRIPTS = frozenset({"torch", "numpy", "raysim", "pydantic", "pydantic_core"})
"""Packages whose globals and classes hold no generator of a script; what is around their functions, and in their
objects, is looked at."""


def found(*holders: object) -> list[Generator]:
    """Return the generators that can be reached from the holders, but for the global ones.

    >>> rng = random.Random(1)
    >>> found([rng.random]) == [rng], found([random.random])
    (True, [])
    """
    generators: list[Generator] = []
    waiting, seen = list(holders), dict[int, object]()
    of_all = {id(torch.default_generator), *(id(getattr(each, "__self__", None)) for each in _GLOBAL)}
    while waiting and len(seen) < MOST:
        value = waiting.pop()
        if id(value) in seen:
            continue
        # Kept alive, for no two to have one id.
        seen[id(value)] = value
        if isinstance(value, GENERATORS):
            if id(value) not in of_all:
                generators.append(value)
            continue
        with suppress(Exception):
            waiting.extend(_inside(value))
    return generators


_GLOBAL = (random.random, np.random.random)
"""Methods of Python's and NumPy's global generators."""


def _inside(value: Any) -> Iterable[Any]:
    match value:
        case str() | bytes() | int() | float() | ModuleType() | torch.Tensor() | np.ndarray():
            return ()
        case dict() | MappingProxyType():
            return value.values() if len(value) <= MOST_INSIDE else ()
        case list() | tuple() | set() | frozenset() | deque():
            return value if len(value) <= MOST_INSIDE else ()
        case partial():
            return value.func, value.args, value.keywords
        case FunctionType():
            return _of_function(value)
        case MethodType():
            return value.__self__, value.__func__
        case BuiltinFunctionType():
            return (value.__self__,)
        case GeneratorType():
            return () if value.gi_frame is None else value.gi_frame.f_locals.values()
        case type():
            return [each for one in value.__mro__ for each in _of_class(one)]
        case staticmethod() | classmethod():
            return (value.__func__,)
        case property():
            return value.fget, value.fset
    slots = (getattr(value, name, None) for kind in type(value).__mro__ for name in _slots(kind))
    return [type(value), *slots, *getattr(value, "__dict__", {}).values()]


def _of_class(kind: type) -> Iterable[Any]:
    return () if _is_no_scripts(kind.__module__) else vars(kind).values()


def _slots(kind: type) -> Iterable[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else slots


def _is_no_scripts(module: str | None) -> bool:
    name = (module or "").partition(".")[0]
    return name in NO_SCRIPTS or (name in sys.stdlib_module_names and name != "__main__")


def _of_function(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from vars(function).values()
    if _is_no_scripts(function.__module__):
        return
    names = _names(function.__code__)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield value
        if isinstance(value, ModuleType):
            yield from (vars(value)[each] for each in names & vars(value).keys())


def _names(code: CodeType) -> set[str]:
    """The names of globals and attributes that a function and those inside it use."""
    inside = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names, *(name for each in inside for name in _names(each))}
