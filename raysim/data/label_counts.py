"""How often each label occurs among a client's targets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.seeds import Int64s


def label_counts(y: npt.NDArray[Any], num_classes: int, padding: int | None) -> Int64s:
    """Counts (num_classes,) over all places of whole-number labels `y`, of any shape; `padding` is no label."""
    labels = y.reshape(-1).astype(np.int64)
    return np.bincount(labels if padding is None else labels[labels != padding], minlength=num_classes)
