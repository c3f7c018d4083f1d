"""Joins rows in memory that other processes of this machine can map, so that they need no copies of a dataset's arrays.

On Linux large rows lie in a file without a name (memfd), which is sealed once it is written: nobody can change it. It
is gone with the last process that maps it, however that ends.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.data.client_arrays import lenders
from raysim.errors import DataError
from raysim.storage.descriptor import Descriptor, which

SMALLEST_BYTES = 1 << 22
"""Smaller rows are copied as soon as a process of Ray's is asked for anything."""

_are_mapped: ContextVar[bool] = ContextVar("are_mapped", default=False)


class SealedMemory(mmap.mmap):
    """A sealed file that is mapped for reading.

    opened: by which others open it, until it is freed, or the script closes it.
    """

    opened: Descriptor


@dataclass(frozen=True)
class MappedRows:
    """Where another process of this machine and user finds rows; file: that of their `Descriptor`."""

    path: str
    file: tuple[int, int]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def rows(self) -> npt.NDArray[Any]:
        """Map them, for reading.

        Raises:
            DataError: the process that joined them is gone, or has closed their file.
        """
        try:
            # Without waiting: what has the number now may be a pipe.
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise self._lost() from error
        try:
            if which(file) != self.file:
                raise self._lost()
            memory = mmap.mmap(file, math.prod(self.shape) * self.dtype.itemsize, access=mmap.ACCESS_READ)
        finally:
            os.close(file)
        return np.frombuffer(memory, self.dtype).reshape(self.shape)

    def _lost(self) -> DataError:
        return DataError(
            f"the rows of a dataset in memory are not at {self.path} any more: the script has closed that file, or has "
            f"ended. Close other files (os.closerange, a daemon) before the dataset is made."
        )


def joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the rows of all arrays, at least one, of one dtype and shape per row; nobody can write to them."""
    if sys.platform == "linux" and sum(array.nbytes for array in arrays) >= SMALLEST_BYTES:
        try:
            return _sealed(arrays)
        except OSError:
            # No such files here, or too many that are open.
            pass
    rows = np.concatenate(arrays)
    rows.flags.writeable = False
    return rows


def _sealed(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    import fcntl  # not on Windows

    first, num_rows = arrays[0], sum(map(len, arrays))
    file = os.memfd_create("raysim-rows", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for array in arrays:
            # Bytes are written, and not mapped: the kernel then clears no page before.
            left = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            while left:
                left = left[os.write(file, left) :]
        fcntl.fcntl(
            file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        )
        memory = _mapped(file)
        memory.opened = Descriptor.of(file)
    except BaseException:
        os.close(file)
        raise
    weakref.finalize(memory, memory.opened.close).atexit = False
    return np.frombuffer(memory, first.dtype).reshape((num_rows, *first.shape[1:]))


def _mapped(file: int) -> SealedMemory:
    if sys.version_info >= (3, 13):
        return SealedMemory(file, 0, access=mmap.ACCESS_READ, trackfd=False)
    # A mapping has a descriptor of its own, whose number it closes when it is freed, whichever file has it then.
    return SealedMemory(file, 0, access=mmap.ACCESS_READ)


@contextmanager
def mapped_by_others() -> Iterator[None]:
    """In the block datasets are pickled for processes of this machine and user, which end before this one does."""
    token = _are_mapped.set(True)
    try:
        yield
    finally:
        _are_mapped.reset(token)


def to_pickle(rows: npt.NDArray[Any]) -> npt.NDArray[Any] | MappedRows:
    """Return what is pickled of rows: in a block of `mapped_by_others` where they are, if they are sealed and open."""
    memory = _memory_of(rows) if _are_mapped.get() else None
    if memory is None or rows.nbytes != len(memory) or not memory.opened.is_open:
        return rows
    return MappedRows(f"/proc/{os.getpid()}/fd/{memory.opened.number}", memory.opened.file, rows.dtype, rows.shape)


def from_pickle(rows: npt.NDArray[Any] | MappedRows) -> npt.NDArray[Any]:
    """Return the rows of which `to_pickle` has made this."""
    return rows.rows() if isinstance(rows, MappedRows) else rows


def _memory_of(rows: npt.NDArray[Any]) -> SealedMemory | None:
    owner = lenders(rows)[-1]
    return owner if isinstance(owner, SealedMemory) else None
