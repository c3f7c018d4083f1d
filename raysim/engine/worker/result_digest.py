"""Computes a checksum of a unit's result: equal for the same bits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic, Enum)
"""Values whose `repr` says all of them."""


def digest(result: object) -> int:
    """Return the CRC-32 of all numbers in tensors, arrays, and records and containers of them.

    Of any other object only its kind counts: its `repr` may hold an address. A cryptographic digest would take longer
    than a few local steps of a large model.

    >>> digest((torch.zeros(2), 1.0)) == digest((torch.zeros(2), 1.0)), digest(0.0) == digest(-0.0)
    (True, False)
    """
    total = 0
    for part in _parts(result):
        total = zlib.crc32(part, total)
    return total


def _parts(value: Any) -> Iterator[bytes | memoryview]:
    """Yield what is counted of a value."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        yield flat.view(torch.uint8).numpy().data
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype} {value.shape}".encode()
        yield value.tobytes()
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from _parts(getattr(value, each.name))
    elif isinstance(value, Mapping):
        yield from _parts(tuple(value.items()))
    elif isinstance(value, tuple | list):
        yield f"{len(value)} of".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, set | frozenset):
        # Their order depends on addresses.
        yield repr(sorted(digest(each) for each in value)).encode()
    elif isinstance(value, PLAIN):
        yield repr(value).encode()
    else:
        kind = type(value)
        yield f"{kind.__module__}.{kind.__qualname__}".encode()
