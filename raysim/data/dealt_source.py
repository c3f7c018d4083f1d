"""Deals a script's own examples to clients, by the keys of sources without natural clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.config.section import Section, replaced
from raysim.data.client_arrays import pair_of, rows_of
from raysim.data.gather import Clients
from raysim.data.partitioned import Partitioned, assign
from raysim.data.partitions.partition import classes
from raysim.errors import DataError

Pair = tuple[npt.NDArray[Any], npt.NDArray[Any]]


class DealtSection(Partitioned, Section):
    """How a script's own examples are dealt."""


def dealt(train: Any, test: Any | None, keys: Mapping[str, Any]) -> dict[str, Clients]:
    """Return the clients of each split; see `FederatedDataset.from_arrays`.

    Raises:
        DataError: pairs of arrays that do not fit.
        ExperimentError: a key that is not of `[data]`, a partition by labels of targets that are none, or a number of
            clients that the examples do not allow.
    """
    section = DealtSection.checked(keys, at="data")
    pairs = {"train": _pair("train", train)}
    if test is not None:
        pairs["test"] = _pair("test", test)
    nothing = np.zeros(0, np.int64)
    labels = {split: _labels(section, y) for split, (_, y) in pairs.items()}
    tested = labels.get("test", nothing)
    # Without test examples there is nobody to deal them to, whatever the key says.
    section = section if len(tested) else replaced(section, test_clients="pooled")
    assignment = assign(section, labels["train"], tested, section.seed or 0)
    whole = {"train": pairs["train"], "validation": pairs["train"], "test": pairs.get("test")}
    return {
        split: {client: (pair[0][rows], pair[1][rows]) for client, rows in members}
        for split, members in assignment.items()
        if (pair := whole[split]) is not None
    }


def _pair(split: str, given: Any) -> Pair:
    where = f"the {split} examples"
    x, y = (rows_of(where, name, rows) for name, rows in zip("xy", pair_of(where, given), strict=True))
    if len(x) != len(y):
        raise DataError(f"{where}: x has {len(x):,} rows and y {len(y):,}: each example needs one of both")
    return x, y


def _labels(section: Partitioned, y: npt.NDArray[Any]) -> Int64s:
    has_one = y.ndim == 1 and y.dtype.kind in "iub"
    return classes(section.partition, y, None if has_one else f"y has rows of {y.dtype} of shape {y.shape[1:]}")
