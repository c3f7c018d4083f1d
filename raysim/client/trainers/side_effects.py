"""What a module holds beside its layers, so that it can be seen whether calling it changes anything.

A forward that counts its calls, keeps a schedule or draws may do something else the next time.
"""

from __future__ import annotations

import random
from argparse import Namespace
from dataclasses import is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace
from typing import Any
from weakref import ReferenceType

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
    return [_state(vars(child)) for child in module.modules()]


def _state(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, Tensor):
        return id(value), value._version
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, SAME):
        return id(value)
    if isinstance(value, FunctionType):
        return id(value), [_state(cell.cell_contents) for cell in value.__closure__ or ()]
    if isinstance(value, MethodType | BuiltinFunctionType):
        # Of a generator's own `random`, say, what matters is the generator.
        return value.__name__, _state(value.__self__)
    if isinstance(value, dict):
        return [(_state(key), _state(one)) for key, one in value.items()]
    if isinstance(value, tuple | list):
        return [_state(one) for one in value]
    if isinstance(value, set | frozenset):
        return set(value) if all(isinstance(one, PLAIN) for one in value) else object()
    if isinstance(value, RECORDS) or is_dataclass(value):
        return _state(vars(value)) if hasattr(value, "__dict__") else object()
    return object()
