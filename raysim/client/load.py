"""Clients' examples as tensors in memory that torch allocated, which fixes their alignment and so the bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.data.dataset import Field


def load(rows: npt.NDArray[Any], field: Field, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Stored rows as a tensor: integers as int64, floats as `dtype`; `stored * scale + offset` where the field says so.

    Args:
        rows: (n, *field.shape) array as stored; it may be a read-only view of a file.
        field: the column's description.
        dtype: the experiment's floating type.
        device: where the tensor goes.
    """
    return load_joined([rows], field, dtype, device)


def load_joined(pieces: Sequence[npt.NDArray[Any]], field: Field, dtype: torch.dtype, device: torch.device) -> Tensor:
    """As `load`, the rows of all pieces one behind the other: one conversion and one transfer for a whole chunk."""
    num_rows = sum(len(piece) for piece in pieces)
    stored = torch.empty((num_rows, *pieces[0].shape[1:]), dtype=_TORCH_DTYPES[pieces[0].dtype.name])
    np.concatenate(pieces, out=stored.numpy())
    stored = stored.to(device)
    if field.scale != 1.0 or field.offset != 0.0:
        return stored.to(dtype).mul_(field.scale).add_(field.offset)
    return stored.to(dtype) if stored.is_floating_point() else stored.to(torch.int64)


_TORCH_DTYPES = {
    name: getattr(torch, name)
    for name in ("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "bool")
} | {name: getattr(torch, name) for name in ("uint16", "uint32", "uint64")}
