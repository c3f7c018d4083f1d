"""What a module holds beside its layers, so that it can be seen whether calling it changes anything.

A forward that counts its calls, keeps a schedule or draws may do something else the next time.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from operator import is_
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any
from weakref import ReferenceType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from raysim.config.own_generators import GENERATORS, generator_restorer, generator_state
from raysim.config.unwritten import version

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


def restorer_with_contents(modules: Iterable[nn.Module], apart: Iterable[Tensor]) -> Callable[[], None]:
    """Return a function that puts back what each module holds now, and the content of tensors in it.

    Of parameters, what is not their content: hooks, whether they want gradients, and gradients that were added up.
    Functions and objects of torch are not looked into. `apart`: tensors in whose memory somebody else puts
    back the content.
    """
    memory = _Memory(contents_but_of=apart)
    for module in modules:
        memory.keep(vars(module))
        for parameter in module._parameters.values():
            if parameter is not None:
                memory.keep_parameter(parameter)
    return memory.put_back


class _Memory:
    """Keeps what values hold.

    Args:
        contents_but_of: tensors whose content others put back. None: no content of tensors is kept, but what functions
            and objects of torch hold is.
    """

    def __init__(self, contents_but_of: Iterable[Tensor] | None = None) -> None:
        self._undo: list[Callable[[], object]] = []
        self._kept: set[int] = set()
        self._with_contents = contents_but_of is not None
        self._apart = {_memory_of(tensor) for tensor in contents_but_of or ()}

    def put_back(self) -> None:
        for undo in self._undo:
            undo()

    def keep(self, value: Any) -> None:
        """Keep what the value holds, and what is in that."""
        if isinstance(value, (*PLAIN, *SAME)) or id(value) in self._kept:
            return
        self._kept.add(id(value))
        if isinstance(value, Tensor | np.ndarray):
            self._keep_content(value)
            return
        inside: list[Any] = []
        if isinstance(value, GENERATORS):
            self._undo.append(generator_restorer(value))
        elif isinstance(value, dict):
            self._undo.append(partial(_put_back_table, value, value.copy()))
            inside = list(value.values())
        elif isinstance(value, set):
            self._undo += [value.clear, partial(value.update, value.copy())]
        elif isinstance(value, list):
            self._undo.append(partial(value.__setitem__, slice(None), inside := list(value)))
        elif isinstance(value, tuple):
            inside = list(value)
        elif isinstance(value, FunctionType | MethodType | BuiltinFunctionType):
            inside = self._kept_of_function(value)
        elif self._opens(value):
            inside = [getattr(value, "__dict__", None)]
        for one in inside:
            self.keep(one)

    def keep_parameter(self, parameter: nn.Parameter) -> None:
        """Keep what is not its content."""
        hooks = parameter._backward_hooks
        self._undo.append(partial(_put_back_parameter, parameter, parameter.requires_grad, hooks and dict(hooks)))

    def _opens(self, value: Any) -> bool:
        """Whether to look into an object: what torch.compile holds belongs to more than the module."""
        if self._with_contents and type(value).__module__.partition(".")[0] in ("torch", "raysim"):
            return False
        return isinstance(value, RECORDS) or is_dataclass(value) or _is_open(value)

    def _keep_content(self, value: Tensor | npt.NDArray[Any]) -> None:
        if not self._with_contents:
            return
        if isinstance(value, np.ndarray):
            if value.flags.writeable and value.nbytes <= LARGEST and not value.dtype.hasobject:
                self._undo.append(partial(np.copyto, value, value.copy()))
        elif not isinstance(value, nn.Parameter) and _is_copied(value) and _memory_of(value) not in self._apart:
            self._undo.append(partial(_put_back_content, value, value.detach(), value.detach().clone()))

    def _kept_of_function(self, function: FunctionType | MethodType | BuiltinFunctionType) -> list[Any]:
        """Keep what a function holds, and return what is in that."""
        if self._with_contents:
            return []
        if not isinstance(function, FunctionType):
            return [function.__self__]
        inside = []
        for cell in function.__closure__ or ():
            with suppress(ValueError):
                self._undo.append(partial(setattr, cell, "cell_contents", cell.cell_contents))
                inside.append(cell.cell_contents)
        return inside


LARGEST = 1 << 24
"""Bytes of an array or a tensor, beside parameters and buffers, up to which a second copy is kept."""


def _is_copied(tensor: Tensor) -> bool:
    dense = tensor.layout == torch.strided and 0 not in tensor.stride() and not tensor.is_inference()
    return dense and tensor.numel() * tensor.element_size() <= LARGEST


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _put_back_content(tensor: Tensor, memory: Tensor, content: Tensor) -> None:
    if tensor.data_ptr() != memory.data_ptr():
        # Somebody has set its `data`.
        tensor.data = memory
    memory.copy_(content)


def _put_back_table(table: dict[Any, Any], kept: dict[Any, Any]) -> None:
    # Nearly always it is as it was.
    if not table and not kept:
        return
    if len(table) == len(kept) and all(map(is_, table, kept)) and all(map(is_, table.values(), kept.values())):
        return
    table.clear()
    table.update(kept)


def _put_back_parameter(parameter: nn.Parameter, requires_grad: bool, hooks: dict[int, Any] | None) -> None:
    parameter.grad = None
    if parameter.requires_grad != requires_grad:
        parameter.requires_grad_(requires_grad)
    own = parameter._backward_hooks
    if own is not None and dict(own) != (hooks or {}):
        own.clear()
        own.update(hooks or {})


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
            return id(value), version(value) if self._by_versions else None
        if isinstance(value, GENERATORS):
            return generator_state(value)
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
