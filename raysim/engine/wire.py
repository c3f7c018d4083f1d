"""Packs records for other processes: tensors become NumPy arrays, which an object store shares without copying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.models.vectors import empty


def pack(record: Any) -> Any:
    """Return (type, fields) of a record, (Tensor, array over the same memory) of a tensor, (dict, items) of tensors by
    name, (list, items) of a list; other values are unchanged."""
    if isinstance(record, Tensor):
        return (Tensor, record.detach().cpu().numpy())
    if is_dataclass(record) and not isinstance(record, type):
        return (type(record), tuple(pack(getattr(record, f.name)) for f in fields(record)))
    if isinstance(record, Mapping) and any(isinstance(value, Tensor) for value in record.values()):
        return (dict, tuple((key, pack(value)) for key, value in record.items()))
    if isinstance(record, list):
        return (list, tuple(pack(value) for value in record))
    return record


def unpack(packed: Any) -> Any:
    """Return the record of a packed one; torch allocates the memory of its tensors, which fixes their alignment."""
    if not (isinstance(packed, tuple) and len(packed) == 2 and isinstance(packed[0], type)):
        return packed
    kind, content = packed
    if kind is Tensor:
        tensor = empty(content.shape, _DTYPES[content.dtype.name], torch.device("cpu"))
        np.copyto(tensor.numpy(), content)
        return tensor
    if kind is dict:
        return {key: unpack(value) for key, value in content}
    if kind is list:
        return [unpack(value) for value in content]
    return kind(*(unpack(value) for value in content))


def num_bytes(packed: Any) -> int:
    """Return the bytes of the arrays in a packed record."""
    if isinstance(packed, np.ndarray):
        return packed.nbytes
    if isinstance(packed, tuple):
        return sum(num_bytes(value) for value in packed)
    return 0


_DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}
)
