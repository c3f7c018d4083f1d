"""Computes a checksum of a unit's result: equal for the same bits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, Enum)
"""Values whose `repr` says all of them."""

PROTOCOL = 2
"""Of pickle: the first that copies objects with slots."""


def digest(result: object) -> int:
    """Return the CRC-32 of all numbers in tensors, arrays, and records, containers and other objects of them.

    An object counts by its kind and by what a copy of it would be made of, and not by its address. One of which no copy
    can be made, such as a lock, counts by its kind alone. A cryptographic digest would take longer than a few local
    steps of a large model.

    >>> digest((torch.zeros(2), 1.0)) == digest((torch.zeros(2), 1.0)), digest(0.0) == digest(-0.0)
    (True, False)
    """
    total = 0
    for part in _parts(result, ()):
        total = zlib.crc32(part, total)
    return total


def _parts(value: Any, within: tuple[int, ...]) -> Iterator[bytes | memoryview]:
    """Yield what is counted of a value; `within`: the ids of the objects that hold it."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield flat.view(torch.uint8).numpy().data
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _parts(getattr(value, each.name), within)
    elif isinstance(value, Mapping):
        yield from _parts(tuple(value.items()), within)
    elif isinstance(value, tuple | list):
        yield f"{len(value)} of".encode()
        for each in value:
            yield from _parts(each, within)
    elif isinstance(value, set | frozenset):
        # Their order depends on addresses.
        yield repr(sorted(digest(each) for each in value)).encode()
    elif isinstance(value, PLAIN):
        yield repr(value).encode()
    elif isinstance(value, type | FunctionType | BuiltinFunctionType):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    else:
        yield from _parts(type(value), within)
        if id(value) not in within:
            yield from _parts(_copied(value), (*within, id(value)))


def _copied(value: object) -> tuple[object, ...]:
    """Return what a copy of the object is made of, as pickle takes it; empty if no copy can be made."""
    try:
        made = value.__reduce_ex__(PROTOCOL)
    except Exception:
        return ()
    if isinstance(made, str):
        return (made,)
    make, arguments, *state = made
    # Behind the state are iterators, over the items of subclasses of list and dict.
    return make, arguments, *state[:1], *map(list, filter(None, state[1:3]))
