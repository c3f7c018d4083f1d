"""Reads pickles of plain values and NumPy arrays, and runs no other code that a file names."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from raysim.errors import DataError


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"encoding {encoding!r}")
    return text.encode("latin1")


# The functions that pickles of arrays name, Python 2's included.
_ALLOWED: Mapping[tuple[str, str], Any] = MappingProxyType(
    {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): _latin1,
    }
)
_RECONSTRUCT = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}


def _reconstruct(kind: Any, shape: Any, dtype: Any) -> Any:
    if kind is not np.ndarray:
        raise pickle.UnpicklingError(f"an array of type {kind!r}")
    return np.ndarray(shape, dtype)


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECONSTRUCT:
            return _reconstruct
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


def loads(content: bytes, where: str) -> Any:
    """Read dictionaries, lists, numbers, texts and arrays of numbers; Python 2's texts become bytes.

    Raises:
        DataError: the pickle is truncated, or names anything else; that is not called.
    """
    try:
        return _Restricted(io.BytesIO(content), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DataError(f"{where}: expected a pickle of plain values and arrays only: {error}") from error
