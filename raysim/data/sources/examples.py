"""A labelled set that is not yet divided among clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from raysim.data.field import Field
from raysim.seeds import Int64s

LABEL = Field((), "int64")


@dataclass(frozen=True, eq=False)
class Examples:
    """Training and test examples of a classification source.

    Attributes:
        x: the features' field; `train_x` is (training examples, *x.shape) and `test_x` (test examples, *x.shape).
        num_classes: labels are int64 in 0..num_classes - 1.
        coarse_of: the coarse label of every label, (num_classes,), where there are two levels; else None.
    """

    x: Field
    num_classes: int
    train_x: npt.NDArray[Any]
    train_y: Int64s
    test_x: npt.NDArray[Any]
    test_y: Int64s
    coarse_of: Int64s | None = None
