"""Defines a stored column: the shape and dtype of an example, and the affine map to its floating value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.errors import DataError

DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}
)

OF_TEXTS = "np.unique(y, return_inverse=True)[1], of the y of all splits together, makes labels 0, 1, ... of texts"
"""What to do where labels are texts."""

OF_TEXTS_IN_X = "texts in x are made numbers first, such as a column of 0 and 1 for each of their values, or left out"
"""What to do where inputs are texts."""


@lru_cache(maxsize=64)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return NumPy's name, which it puts together anew every time: most of what a client of a few examples would cost.

    >>> dtype_name(np.dtype(">f4"))
    'float32'
    """
    return dtype.name


TABLES = (".csv", ".parquet", ".arrow", ".feather")
"""How names of files with tables end."""

OF_CSV = "pyarrow.parquet.write_table(pyarrow.csv.read_csv(file), other) makes one of a CSV file"
"""How a table that raysim reads is made."""

ARRAYS = (".npz", ".npy")
"""How names of NumPy's files end."""

OF_ARRAYS = (
    "raysim.FederatedDataset.from_clients({client: (x, y), ...}), or from_arrays((x, y), clients=100), takes them from "
    "a script, as dataset=; pyarrow.parquet.write_table(pyarrow.table({'client': ids, "
    "'x': list(x.reshape(len(x), -1)), 'y': y}), file) makes a table of them"
)
"""What to do with arrays in a file."""

OF_TABLES = (
    "the source arrow reads tables of your own: data.name = 'arrow' and data.train = 'train.parquet', a .parquet, "
    f".arrow or .feather file; {OF_CSV}"
)
"""What to do where a file with a table is given in the place of a source or a dataset."""


@dataclass(frozen=True)
class Field:
    """The form of one example of a column.

    Attributes:
        shape: of one example; () for scalar labels. Every dimension is at least 1.
        dtype: NumPy dtype name as stored, one of `DTYPES`.
        scale: the floating value is `stored * scale + offset`; whoever loads the data applies it.
        offset: see `scale`.
        padding: targets only: the label of places that fill a row up; neither loss nor accuracy counts them. None:
            every place counts.
        uncounted: targets only: further labels that accuracy does not count, though the loss does.
        by_place: targets with padding only: a mean of losses is over all places that are not padding, whichever
            examples they are of. Otherwise examples weigh alike.

    Raises:
        DataError: a dimension below 1, a dtype that is not numeric, or marks on a single label.
    """

    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0
    offset: float = 0.0
    padding: int | None = None
    uncounted: tuple[int, ...] = ()
    by_place: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple) or not all(isinstance(each, Integral) for each in self.shape):
            raise DataError(f"an example's shape must be a tuple of whole numbers, but got {self.shape!r}")
        if not (math.isfinite(self.scale) and math.isfinite(self.offset)):
            raise DataError(f"scale and offset must be finite, but got {self.scale} and {self.offset}")
        if any(dimension < 1 for dimension in self.shape):
            raise DataError(f"every dimension of an example must be at least 1, but the shape is {self.shape}")
        if self.dtype not in DTYPES:
            raise DataError(f"a stored dtype must be one of {', '.join(sorted(DTYPES))}, but got {self.dtype!r}")
        if (self.padding is not None or self.uncounted) and not self.shape:
            raise DataError("padding and uncounted mark places of a row, but the shape is (): one label an example")
        if self.by_place and self.padding is None:
            raise DataError(
                "by_place weighs the places that are not padding alike, so padding must say which those are"
            )

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> Field:
        """Return the field of an array whose first axis counts examples."""
        return cls(shape=tuple(array.shape[1:]), dtype=array.dtype.name)

    @property
    def is_floating(self) -> bool:
        """True if stored values are floating point."""
        return self.dtype.startswith("float")

    @property
    def values(self) -> int:
        """Numbers per example."""
        return math.prod(self.shape)

    @property
    def example_bytes(self) -> int:
        """Bytes per stored example."""
        return self.values * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def label_counts(y: npt.NDArray[Any], num_classes: int, padding: int | None) -> Int64s:
    """Return counts (num_classes,) over all places of whole-number labels `y`, of any shape; `padding` is not a label.

    >>> label_counts(np.array([2, 0, 2]), num_classes=3, padding=0).tolist()
    [0, 0, 2]
    """
    labels = y.reshape(-1).astype(np.int64)
    return np.bincount(labels if padding is None else labels[labels != padding], minlength=num_classes)
