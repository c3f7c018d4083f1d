"""Reads TensorFlow Federated's HDF5: `examples/<client>/<column>`, one row per example."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.data.sources.published import SourceFile
from raysim.errors import DataError


class ClientColumns(NamedTuple):
    """A client's columns by name, all of one length."""

    client: str
    columns: dict[str, npt.NDArray[Any]]


def ids(file: SourceFile) -> list[str]:
    """Return the clients, in the file's order of names."""
    with _opened(file) as examples:
        return list(examples)


def clients(file: SourceFile, columns: Sequence[str]) -> Iterator[ClientColumns]:
    """Yield each client's columns, one client in memory at a time.

    Raises:
        DataError: another kind of file, a missing column, or columns of different lengths; names the client.
    """
    with _opened(file) as examples:
        for client in examples:
            group = examples[client]
            missing = [name for name in columns if name not in group]
            if missing:
                raise DataError(
                    f"{file.path}, client {client!r}: expected columns {list(columns)}, found {list(group)}"
                )
            found = {name: np.asarray(group[name]) for name in columns}
            if len({len(column) for column in found.values()}) != 1:
                lengths = {name: len(column) for name, column in found.items()}
                raise DataError(f"{file.path}, client {client!r}: expected columns of one length, found {lengths}")
            yield ClientColumns(client, found)


@contextmanager
def _opened(file: SourceFile) -> Iterator[Any]:
    try:
        import h5py  # optional
    except ImportError:
        raise DataError(f"{file.path} needs the package h5py: pip install 'raysim[hdf5]'") from None
    with file.reading("a whole HDF5 file"):
        opened = h5py.File(file.path, "r")
    with opened, file.reading("the groups and columns of TensorFlow Federated"):
        if "examples" not in opened:
            raise DataError(f"{file.path}: expected the group 'examples', found {list(opened)}")
        yield opened["examples"]
