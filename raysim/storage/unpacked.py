"""Bounds what a file of a stranger unpacks to: a kilobyte can hold a table of more rows than there is memory for."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.arrays import Int64s
from raysim.errors import RaysimError
from raysim.storage.disk import in_words

COPIES = 2
"""Of a table in memory while its columns become arrays."""

ALWAYS_BYTES = 64 << 20
"""Read without a look at the memory."""

_OFFSET_BYTES = 8
"""Of the place where a text or a list begins, at most."""

_VIEW_BYTES = 16

_MEMORY = Path("/proc/meminfo")
_LIMIT, _USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


def check(path: Path, num_bytes: int, error: type[RaysimError]) -> None:
    """Refuse a file that unpacks to more than this machine can hold.

    Raises:
        RaysimError: of the class `error`; names the file and both sizes.
    """
    if num_bytes > ALWAYS_BYTES and num_bytes > (free := free_memory()) // COPIES:
        raise error(
            f"{path} unpacks to {in_words(num_bytes)}, for which {in_words(COPIES * num_bytes)} of memory are needed, "
            f"and {in_words(free)} are free: read it on a larger machine, or divide it."
        )


def free_memory() -> int:
    """Return the bytes of memory that this process may still take."""
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        # Other systems than Linux do not say what is free.
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return max(0, min(free, int(_LIMIT.read_text()) - int(_USED.read_text())))
    except (OSError, ValueError):
        return free


def plain_bytes(array: pa.Array) -> int:
    """Return the bytes of an array once each of its rows has a value of its own: codes and views share values.

    >>> plain_bytes(pa.array(["long"] * 1000).dictionary_encode())
    12000
    """
    kind = array.type
    if pa.types.is_map(kind):
        return _OFFSET_BYTES * len(array) + plain_bytes(array.keys) + plain_bytes(array.items)
    if pa.types.is_struct(kind):
        return sum(plain_bytes(array.field(place)) for place in range(kind.num_fields))
    if pa.types.is_nested(kind) and hasattr(array, "values"):
        return _OFFSET_BYTES * len(array) + plain_bytes(array.values)
    if pa.types.is_dictionary(kind) and _is_text(kind.value_type):
        lengths = pa.array(_text_bytes(array.dictionary)).take(array.indices)
        return _OFFSET_BYTES * len(array) + int(pc.sum(lengths).as_py() or 0)
    if pa.types.is_dictionary(kind):
        return len(array) * -int(-array.dictionary.nbytes // max(1, len(array.dictionary)))
    return _OFFSET_BYTES * len(array) + int(_text_bytes(array).sum()) if _is_text(kind) else int(array.nbytes)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.string_view(), pa.binary_view())


def _text_bytes(texts: pa.Array) -> Int64s:
    """Return the bytes of each text; of nulls, a number that is not above those that are stored."""
    if texts.type in (pa.string_view(), pa.binary_view()):
        # A view begins with its length.
        views = np.frombuffer(texts.buffers()[1] or b"", np.int32).reshape(-1, _VIEW_BYTES // 4)
        return views[texts.offset : texts.offset + len(texts), 0].astype(np.int64)
    lengths: Int64s = pc.binary_length(texts).fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return lengths
