"""Defines the partition by the source's clients: writers, users, roles."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.config.section import Section


class Natural(Section):
    """One client per value of the source's key column, in sorted order of the values."""

    name: Literal["natural"] = "natural"


def natural(client_keys: npt.NDArray[Any]) -> list[Int64s]:
    """Divide examples; see `Natural`. The id of part k is `numpy.unique(client_keys)[k]`.

    >>> [part.tolist() for part in natural(np.array(["ann", "bob", "ann"]))]
    [[0, 2], [1]]

    Args:
        client_keys: the key of each example, (examples,), of a dtype that sorts.
    """
    _, clients, sizes = np.unique(client_keys, return_inverse=True, return_counts=True)
    return np.split(np.argsort(clients, kind="stable").astype(np.int64, copy=False), np.cumsum(sizes)[:-1])
