"""Gathers one pair of arrays per client into one checked ArraySplit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.data import shared_rows
from raysim.data.array_split import ArraySplit
from raysim.data.client_arrays import client_id, clients_of, is_fixed, pair_of, rows_of
from raysim.data.field import Field, dtype_name
from raysim.data.lent_rows import lent
from raysim.errors import DataError

Clients = Mapping[str, tuple[Any, Any]] | Mapping[int, tuple[Any, Any]]


def gather(split: str, clients: Clients, x: Field | None = None, y: Field | None = None) -> ArraySplit:
    """Check the clients of one split and join their rows.

    The rows are copied: a script may change its arrays later. Arrays that nobody can write to (`is_fixed`) are shared,
    if there is only one client, or if they are consecutive slices of one buffer.

    Args:
        split: the split's name, for messages; only clients of "train" must have examples.
        clients: id -> (x, y), anything `np.asarray` takes; their order is the order of positions.
        x: the required field of x; None: the first client's.
        y: the required field of y; None: the first client's.

    Raises:
        DataError: a client does not fit; names it.
    """
    ids: dict[str, None] = {}
    xs: list[npt.NDArray[Any]] = []
    ys: list[npt.NDArray[Any]] = []
    for key, pair in clients_of(split, clients).items():
        name = client_id(split, key)
        if name in ids:
            raise DataError(f"client ids must differ as text, but split {split!r} has {name!r} twice")
        where = f"client {name!r} of split {split!r}"
        raw_x, raw_y = pair_of(where, pair)
        client_x, client_y = _native(rows_of(where, "x", raw_x)), _native(rows_of(where, "y", raw_y))
        if len(client_x) != len(client_y):
            raise DataError(
                f"{where}: x and y must have as many rows, but x has {len(client_x)} and y has {len(client_y)}"
            )
        if split == "train" and not len(client_x):
            raise DataError(f"{where}: a training client must have at least one example, but it has none")
        x, y = x or _field(where, "x", client_x), y or _field(where, "y", client_y)
        _check(where, "x", client_x, x)
        _check(where, "y", client_y, y)
        ids[name] = None
        xs.append(client_x)
        ys.append(client_y)
    if not ids:
        raise DataError(f"split {split!r} must have at least one client, but it has none")
    first_rows = np.concatenate([[0], np.cumsum([len(client_y) for client_y in ys])]).astype(np.int64)
    made = ArraySplit(tuple(ids), _joined(xs), _joined(ys), first_rows)
    return lent(made, (_is_shared(xs), _is_shared(ys)))


def _native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _field(where: str, column: str, array: npt.NDArray[Any]) -> Field:
    try:
        return Field.of(array)
    except DataError as error:
        raise DataError(f"{where}: {column}: {error}") from None


def _check(where: str, column: str, array: npt.NDArray[Any], field: Field) -> None:
    if array.shape[1:] != field.shape or dtype_name(array.dtype) != field.dtype:
        found = f"{array.dtype.name}[{', '.join(map(str, array.shape[1:]))}]"
        raise DataError(
            f"{where}: every client's {column} must have one dtype and shape per example, here {field} as in the first "
            f"training client, but this one has {found}{_converted(field, array)}"
        )


def _converted(field: Field, array: npt.NDArray[Any]) -> str:
    """Return how the array gets the field's dtype, where that is all that differs."""
    return f": convert it, by .astype(np.{field.dtype})" if tuple(array.shape[1:]) == field.shape else ""


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if not _is_shared(arrays):
        return shared_rows.joined(arrays)
    first = next(array for array in arrays if array.size)
    shape = (sum(len(array) for array in arrays), *first.shape[1:])
    # Not first.strides: an array of one row may have any stride along it and still be contiguous.
    strides = [first.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)


def _is_shared(arrays: list[npt.NDArray[Any]]) -> bool:
    filled = [array for array in arrays if array.size]
    return all(map(is_fixed, filled)) and _lie_in_order(filled)


def _lie_in_order(arrays: list[npt.NDArray[Any]]) -> bool:
    if not arrays or not all(array.flags.c_contiguous for array in arrays):
        return False
    owners = {id(_owner(array)) for array in arrays}
    return len(owners) == 1 and all(
        before.ctypes.data + before.nbytes == after.ctypes.data for before, after in itertools.pairwise(arrays)
    )


def _owner(array: npt.NDArray[Any]) -> object:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None else array.base
