"""Takes what a script hands over as a client: its id and its arrays. What numpy would misread is refused by name."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from mmap import mmap
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raysim.config.masked_values import holds, masked_values
from raysim.data.field import DTYPES, OF_TEXTS, OF_TEXTS_IN_X, dtype_name
from raysim.errors import DataError

_LARGEST, _WIDEST = np.iinfo(np.int64).max, 8


def clients_of(split: str, clients: object) -> Mapping[Any, Any]:
    """Return the clients of a split, once it is clear that they have ids.

    Raises:
        DataError: they are not a mapping.
    """
    if isinstance(clients, Mapping):
        return clients
    numbered = ", such as dict(enumerate(pairs))" if isinstance(clients, list | tuple) else ""
    raise DataError(
        f"split {split!r} must be a mapping from client ids to pairs (x, y){numbered}, but got {type(clients).__name__}"
    )


def client_id(split: str, key: object) -> str:
    """Return a client's id as text.

    Raises:
        DataError: it is neither text that UTF-8 can hold nor a whole number.
    """
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(int(key))
    if not isinstance(key, str):
        raise DataError(f"a client id must be a str or an int, but split {split!r} has {key!r} ({type(key).__name__})")
    if not is_utf8(key):
        raise DataError(
            f"a client id must be text that UTF-8 can hold, but split {split!r} has {key!r}, with a lone surrogate"
        )
    # Of an enum with texts, str() has the member's name.
    return str.__str__(key)


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold the text, as files of a run must.

    >>> is_utf8("zoë"), is_utf8("zo\\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_number(value: object) -> bool:
    """Whether a value is a real number; `true` is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def pair_of(where: str, pair: object) -> tuple[Any, Any]:
    """Return a client's x and y as they are.

    Raises:
        DataError: they are not a tuple or list of two. An array of two rows is not taken apart.
    """
    if isinstance(pair, tuple | list) and len(pair) == 2:
        return pair[0], pair[1]
    found = f"{len(pair)} values" if isinstance(pair, tuple | list) else type(pair).__name__
    raise DataError(f"{where}: expected a pair (x, y), but got {found}")


def rows_of(where: str, column: str, values: Any) -> npt.NDArray[Any]:
    """Return the rows of a column as an array; memory is shared with `values` where numpy does.

    Args:
        where: client and split, for messages.
        column: "x" or "y".
        values: anything `np.asarray` takes, without masked values.

    Raises:
        DataError: numpy does not take it, values are masked or null, or it does not hold numbers that models can be
            given.
    """
    if masked := masked_values(values):
        raise DataError(
            f"{where}: {column} has {masked} masked values, and none can be stored: leave these examples out, or fill "
            f"them, by {column}.filled(value)"
        )
    if (null := _first_null(values)) is not None:
        raise DataError(
            f"{where}: {column} has nulls, the first one in row {null}, and none can be stored: leave these examples "
            f"out, by drop_null(), or fill them, by fill_null(value)"
        )
    if getattr(values, "is_nested", False) is True:
        raise DataError(
            f"{where}: {column} is a nested tensor, whose rows differ in length, and all examples have one shape: pad "
            f"them, by torch.nested.to_padded_tensor({column}, 0)"
        )
    try:
        array = np.asarray(values)
    except Exception as error:
        # Ragged lists; tensors on a device or with gradients; whatever an object's __array__ raises.
        raise DataError(f"{where}: {column} is not an array: {type(error).__name__}: {error}") from error
    if array.ndim == 0:
        raise DataError(
            f"{where}: the first axis of {column} must count examples, but {column} is a scalar "
            f"({type(values).__name__})"
        )
    if dtype_name(array.dtype) not in DTYPES:
        hint = f": {OF_TEXTS if column == 'y' else OF_TEXTS_IN_X}" * (column == "y" or array.dtype.kind in "US")
        raise DataError(
            f"{where}: {column} must hold numbers ({', '.join(sorted(DTYPES))}), but it is {array.dtype}{hint}"
        )
    if array.dtype.kind == "u" and array.dtype.itemsize == _WIDEST and array.size and array.max() > _LARGEST:
        raise DataError(
            f"{where}: {column} has whole numbers up to {array.max()}, and models are given them as int64, up to "
            f"{_LARGEST}: make them smaller, or floating-point numbers"
        )
    return array


def _first_null(values: Any) -> int | None:
    """The first row with a null of an Arrow array or table, which NumPy would make NaN; None if there is none."""
    if holds(values, pa.Array | pa.ChunkedArray):
        return next((row for row, each in enumerate(values) if _first_null(each) is not None), None)
    columns = values.columns if isinstance(values, pa.Table | pa.RecordBatch) else [values]
    rows = [
        int(np.argmax(np.asarray(each.is_null())))
        for each in columns
        if isinstance(each, pa.Array | pa.ChunkedArray) and each.null_count
    ]
    return min(rows, default=None)


def is_fixed(array: npt.NDArray[Any]) -> bool:
    """Whether neither the array nor what it is a view of can be written to: then it may be shared with a script.

    >>> rows = np.zeros((4, 2))
    >>> rows.flags.writeable = False
    >>> is_fixed(rows[1:]), is_fixed(np.zeros(3))
    (True, False)
    """
    *views, owner = lenders(array)
    if any(view.flags.writeable for view in views):
        return False
    if isinstance(owner, np.ndarray):
        return not owner.flags.writeable
    if isinstance(owner, mmap):
        return memoryview(owner).readonly
    # Whatever else lends its memory, such as a tensor or a bytearray, may be written to by other ways.
    return isinstance(owner, bytes)


def is_cut_off(array: npt.NDArray[Any]) -> bool:
    """Whether the array maps a file that is shorter than it was: to read what is lost would end the process."""
    owner = lenders(array)[-1]
    try:
        return isinstance(owner, mmap) and owner.size() < len(owner)
    except ValueError:
        # Mapped without its file, which is sealed.
        return False
    except OSError as error:
        # A script that closes all files, as a daemon does, closes what Python asks for the size; the rows stay mapped.
        if error.errno != errno.EBADF:
            raise
        return False


def lenders(array: npt.NDArray[Any]) -> list[Any]:
    """Return the array, what it is a view of, and so on to what owns the memory."""
    held: Any = array
    found = []
    while isinstance(held, np.ndarray):
        found.append(held)
        if held.base is None:
            return found
        held = held.base
        # NumPy's windows (sliding_window_view, as_strided) put an object between a view and its array.
        below = getattr(held, "base", None)
        held = below if isinstance(below, np.ndarray) and not isinstance(held, np.ndarray) else held
    while isinstance(held, memoryview):
        held = held.obj
    return [*found, held]
