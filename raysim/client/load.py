"""Stored rows as tensors in memory that torch allocated, which fixes their alignment and so the bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.data.field import DTYPES, Field

STORED: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
"""torch's dtype of each that is stored."""


def joined(pieces: Sequence[npt.NDArray[Any]], pinned: bool = False) -> Tensor:
    """The rows of all pieces one behind the other, as stored, copied on the host.

    Args:
        pieces: one or more (n, ...) arrays of one dtype; they may be read-only views of a file.
        pinned: into memory that a card reads by itself.
    """
    num_rows = sum(len(piece) for piece in pieces)
    rows = torch.empty((num_rows, *pieces[0].shape[1:]), dtype=STORED[pieces[0].dtype.name], pin_memory=pinned)
    np.concatenate(pieces, out=rows.numpy())
    return rows


def converted(stored: Tensor, field: Field, dtype: torch.dtype) -> Tensor:
    """Stored rows as models take them, where they are: integers as int64, floats as `dtype`; `stored * scale + offset`
    as `dtype` where the field says so. The result may be `stored` itself, written to.
    """
    if field.scale != 1.0 or field.offset != 0.0:
        return stored.to(dtype).mul_(field.scale).add_(field.offset)
    return stored.to(dtype) if stored.is_floating_point() else stored.to(torch.int64)
