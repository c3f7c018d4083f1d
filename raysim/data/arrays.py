"""All rows of a split in one x and one y, for splits that hold them so: whoever wants many clients gathers by index."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

from raysim.seeds import Int64s


class Arrays(NamedTuple):
    """Stored rows, to be read only, and where each client's begin; they may hold rows of nobody as well.

    Attributes:
        x: features, (rows, ...).
        y: targets, (rows, ...).
        first_rows: int64, (clients,); client k has the next `sizes()[k]` rows from first_rows[k] on.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    first_rows: Int64s
