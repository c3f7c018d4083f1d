"""Gathers one pair of arrays per client into one checked ArraySplit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.data.array_split import ArraySplit
from raysim.data.field import DTYPES, Field
from raysim.errors import DataError

Clients = Mapping[str, tuple[Any, Any]] | Mapping[int, tuple[Any, Any]]


def gather(split: str, clients: Clients, x: Field | None = None, y: Field | None = None) -> ArraySplit:
    """Check the clients of one split and join their rows.

    Nothing is copied if the arrays are consecutive slices of one buffer, or if there is only one client.

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
    for key, pair in clients.items():
        client_id = _id(split, key)
        if client_id in ids:
            raise DataError(f"client ids must differ as text, but split {split!r} has {client_id!r} twice")
        where = f"client {client_id!r} of split {split!r}"
        try:
            raw_x, raw_y = pair
        except (TypeError, ValueError):
            raise DataError(f"{where}: expected a pair (x, y), but got {type(pair).__name__}") from None
        client_x, client_y = _array(where, "x", raw_x), _array(where, "y", raw_y)
        if len(client_x) != len(client_y):
            raise DataError(
                f"{where}: x and y must have as many rows, but x has {len(client_x)} and y has {len(client_y)}"
            )
        if split == "train" and not len(client_x):
            raise DataError(f"{where}: a training client must have at least one example, but it has none")
        x, y = x or _field(where, "x", client_x), y or _field(where, "y", client_y)
        _check(where, "x", client_x, x)
        _check(where, "y", client_y, y)
        ids[client_id] = None
        xs.append(client_x)
        ys.append(client_y)
    if not ids:
        raise DataError(f"split {split!r} must have at least one client, but it has none")
    first_rows = np.concatenate([[0], np.cumsum([len(client_y) for client_y in ys])]).astype(np.int64)
    return ArraySplit(tuple(ids), _joined(xs), _joined(ys), first_rows)


def _id(split: str, key: object) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(int(key))
    raise DataError(f"a client id must be a str or an int, but split {split!r} has {key!r} ({type(key).__name__})")


def _array(where: str, column: str, values: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists; tensors on a device or with gradients
        raise DataError(f"{where}: {column} is not an array: {error}") from error
    if array.ndim == 0:
        raise DataError(f"{where}: the first axis of {column} must count examples, but {column} is a scalar")
    if array.dtype.name not in DTYPES:
        raise DataError(f"{where}: {column} must hold numbers ({', '.join(sorted(DTYPES))}), but it is {array.dtype}")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _field(where: str, column: str, array: npt.NDArray[Any]) -> Field:
    try:
        return Field.of(array)
    except DataError as error:
        raise DataError(f"{where}: {column}: {error}") from None


def _check(where: str, column: str, array: npt.NDArray[Any], field: Field) -> None:
    if tuple(array.shape[1:]) != field.shape or array.dtype.name != field.dtype:
        found = f"{array.dtype.name}[{', '.join(map(str, array.shape[1:]))}]"
        raise DataError(
            f"{where}: every client's {column} must have one dtype and shape per example, here {field} as in the first "
            f"training client, but this one has {found}"
        )


def _joined(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0])
    first = next((array for array in arrays if array.size), arrays[0])
    if _lie_in_order([array for array in arrays if array.size]):
        shape = (sum(len(array) for array in arrays), *first.shape[1:])
        # Not first.strides: an array of one row may have any stride along it and still be contiguous.
        strides = [first.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return np.lib.stride_tricks.as_strided(first, shape, strides, writeable=False)
    return np.concatenate(arrays)


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
