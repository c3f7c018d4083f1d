"""Keeps memory of the host that the process used before, and gives back what is not needed.

The C library gives a block of more than 32 MB back to the kernel when it is freed, and the kernel clears the memory of
every new one; a virtual machine may also have to find memory for it first. On such a machine a vector of 11 million
float64 cost 150 ms, where the addition that writes it takes 10 ms. Rounds make vectors of the same few sizes again and
again, so a process keeps some blocks of those that it has freed. The C library is told to keep smaller ones, and what
torch makes in a local step.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np
import torch
from numpy.typing import NDArray

SMALLEST_BYTES = 1 << 22
"""Smaller vectors come from the C library, which uses their memory again."""

MOST_FREE = 3
"""Free blocks of a size that a process keeps: adding two sums takes three at a time."""

MOST_SIZES = 8
"""Sizes of which it keeps any. A process that meets more, such as one with many models, starts again with none."""

_HUGE_PAGE = 1 << 21

MOST_TRIMMED = 1 << 30
"""Free bytes at the end of the C library's heap from which it gives them back to the kernel. By itself it takes twice
the largest block, which a local step with millions of weights frees and asks for again each time."""

MOST_ON_HEAP = 1 << 25
"""Bytes of a block up to which it comes from that heap; the library allows no more."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""

OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Variables of the environment by which a user sets the same; of the last, where it is about malloc."""


def is_lacking(error: BaseException | None) -> bool:
    """Whether this error says that memory ran out: of torch's on a CPU it is the text that does."""
    lacking = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return lacking or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


class Blocks:
    """Blocks of memory in huge pages, and those of them that are free.

    No lock: a collection of garbage may free a block while the same thread takes one. Each step on the dictionary and
    its lists is atomic.
    """

    def __init__(self) -> None:
        self._free: dict[int, list[mmap.mmap]] = {}

    def lend(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return uninitialised memory (num_bytes,) that starts with a huge page.

        It is free again once the array and all that share its memory are gone.

        Raises:
            OSError: the machine has no such memory.
        """
        length = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE
        try:
            block = self._free[length].pop()
        except LookupError:
            block = _new(length)
        lent = np.frombuffer(block, np.uint8)
        weakref.finalize(lent, self._give_back, length, block).atexit = False
        start = -lent.ctypes.data % _HUGE_PAGE
        return lent[start : start + num_bytes]

    def _give_back(self, length: int, block: mmap.mmap) -> None:
        if length not in self._free and len(self._free) >= MOST_SIZES:
            self._free.clear()
        free = self._free.setdefault(length, [])
        if len(free) < MOST_FREE:
            free.append(block)


def _new(length: int) -> mmap.mmap:
    block = mmap.mmap(-1, length + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Only advice: a kernel that refuses it changes nothing.
    block.madvise(mmap.MADV_HUGEPAGE)
    return block


BLOCKS = Blocks()
"""Those of this process; only for Linux."""


def keep_freed() -> None:
    """Have the C library keep freed memory for this process, at the end of its heap up to `MOST_TRIMMED`, unless the
    environment says how.

    Pages that are new to the process cost more than what is computed in them: on a virtual machine, an addition of
    200,000 float64 took ten times as long.
    """
    *settings, tunables = OWN_SETTINGS
    if any(name in os.environ for name in settings) or "glibc.malloc" in os.environ.get(tunables, ""):
        return
    # Only glibc has it, and needs it.
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_TRIM_THRESHOLD, MOST_TRIMMED)
        option(_MMAP_THRESHOLD, MOST_ON_HEAP)


def give_back() -> None:
    """Give free memory of the C library to the kernel: it would keep that of many tensors of some MB."""
    # Only glibc has it, and needs it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
