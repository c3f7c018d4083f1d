"""What a module holds beside its layers, so that it can be seen whether calling it changes anything.

A forward that counts its calls, keeps a schedule or draws may do something else the next time.
"""

from __future__ import annotations

import random
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (NoneType, bool, int, float, complex, str, bytes, type, Enum, torch.dtype, torch.device)
"""Compared by what they are."""

SAME = (nn.Module, ModuleType, ReferenceType)
"""Compared by which one it is."""

RECORDS = (Namespace, SimpleNamespace)
"""Compared by what they hold, as dataclasses are."""


def by(module: nn.Module) -> Any:
    """What the module and those inside hold, to be compared with `==`. What cannot be looked into, as an iterator
    or an object of a class of one's own cannot, is unlike everything, itself included."""
    look = _Look(by_versions=True, into_objects=False)
    return [look.state(vars(child)) for child in module.modules()]


def held(module: nn.Module) -> Any:
    """The same of the module alone, for whoever sees what is written to its tensors: these are compared by which one
    it is, and objects of classes written in Python by what they hold."""
    return _Look(by_versions=False, into_objects=True).state(vars(module))


def restorer(modules: Iterable[nn.Module]) -> Callable[[], None]:
    """Return a function that puts back what each module holds now, but for the content of tensors.

    Lists, tables, sets, generators, closures and objects of classes written in Python are put back inside too. An
    iterator cannot be, nor what lies outside of the modules.
    """
    memory = _Memory()
    for module in modules:
        memory.keep(vars(module))
    return memory.put_back


class _Memory:
    """Keeps what values hold."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], object]] = []
        self._kept: set[int] = set()

    def put_back(self) -> None:
        for undo in self._undo:
            undo()

    def keep(self, value: Any) -> None:
        """Keep what the value holds, and what is in that."""
        if isinstance(value, (*PLAIN, *SAME, Tensor)) or id(value) in self._kept:
            return
        self._kept.add(id(value))
        inside: list[Any] = []
        if isinstance(value, random.Random):
            self._undo.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.Generator):
            self._undo.append(partial(setattr, value.bit_generator, "state", value.bit_generator.state))
        elif isinstance(value, dict | set):
            copied = value.copy()
            self._undo += [value.clear, partial(value.update, copied)]
            inside = list(value.values()) if isinstance(value, dict) else []
        elif isinstance(value, list):
            self._undo.append(partial(value.__setitem__, slice(None), inside := list(value)))
        elif isinstance(value, tuple):
            inside = list(value)
        elif isinstance(value, FunctionType):
            for cell in value.__closure__ or ():
                with suppress(ValueError):
                    self._undo.append(partial(setattr, cell, "cell_contents", cell.cell_contents))
                    inside.append(cell.cell_contents)
        elif isinstance(value, MethodType | BuiltinFunctionType):
            inside = [value.__self__]
        elif isinstance(value, RECORDS) or is_dataclass(value) or _is_open(value):
            inside = [getattr(value, "__dict__", None)]
        for one in inside:
            self.keep(one)


_WRITTEN_IN_PYTHON = 1 << 9
"""CPython's flag of a class that a class statement made (Py_TPFLAGS_HEAPTYPE)."""


class _Look:
    """Looks into values.

    by_versions: whether a tensor counts as changed when it was written to. into_objects: whether objects of classes
    that nothing is known of are looked into.
    """

    def __init__(self, by_versions: bool, into_objects: bool) -> None:
        self._by_versions, self._into_objects = by_versions, into_objects
        self._open: set[int] = set()

    def state(self, value: Any) -> Any:
        """What is compared."""
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, Tensor):
            return id(value), value._version if self._by_versions else None
        if isinstance(value, random.Random):
            return value.getstate()
        if isinstance(value, SAME):
            return id(value)
        if isinstance(value, FunctionType):
            return self._opened(value, lambda: [self._cell(cell) for cell in value.__closure__ or ()])
        if isinstance(value, MethodType | BuiltinFunctionType):
            # Of a generator's own `random`, say, what matters is the generator.
            return value.__name__, self.state(value.__self__)
        if isinstance(value, dict):
            return [(self.state(key), self.state(one)) for key, one in value.items()]
        if isinstance(value, tuple | list):
            return [self.state(one) for one in value]
        if isinstance(value, set | frozenset):
            return set(value) if all(isinstance(one, PLAIN) for one in value) else object()
        if isinstance(value, RECORDS) or is_dataclass(value):
            return self.state(vars(value)) if hasattr(value, "__dict__") else object()
        if self._into_objects and _is_open(value):
            return self._opened(value, lambda: self.state(vars(value)))
        return object()

    def _cell(self, cell: CellType) -> Any:
        try:
            held = cell.cell_contents
        except ValueError:
            # A name that is given a value later.
            return None
        return self.state(held)

    def _opened(self, value: Any, look: Callable[[], Any]) -> Any:
        if id(value) in self._open:
            # It holds itself: what it holds is being looked at.
            return id(value)
        self._open.add(id(value))
        try:
            return id(value), look()
        finally:
            self._open.remove(id(value))


def _is_open(value: Any) -> bool:
    """Whether all that the object holds is in its dictionary."""
    classes = type(value).__mro__[:-1]
    return hasattr(value, "__dict__") and all(
        c.__flags__ & _WRITTEN_IN_PYTHON and not c.__dict__.get("__slots__") for c in classes
    )
