"""Notices changes of rows that a dataset shares with a script: an older view of them, or their file, can be written to.

NumPy does not tell which views of an array there are, nor who writes to a file that is mapped for reading. So the rows
are compared when a run begins with them, and when it has ended.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.data.array_split import ArraySplit
from raysim.data.client_arrays import is_cut_off
from raysim.data.split import Split
from raysim.data.subset import Subset
from raysim.errors import DataError

log = logging.getLogger("raysim")

_WHOLE_BYTES = 64 << 20
"""Of larger arrays only pieces are compared: a run of a study should not begin and end with seconds of reading."""

_PIECES, _PIECE_BYTES = 256, 1 << 16

_HOW = "from_clients shares read-only arrays, and an older view of them, or the file that they map, was written to"


def lent(split: ArraySplit, is_shared: tuple[bool, bool]) -> ArraySplit:
    """Return the split with what tells changes of its x and y, as far as they are shared with a script."""
    found = [_checksum(rows) if is_lent else None for rows, is_lent in zip((split.x, split.y), is_shared, strict=True)]
    return ArraySplit(split.ids, split.x, split.y, split.first_rows, (found[0], found[1]))


def check(splits: Mapping[str, Split]) -> None:
    """Check that rows are as they were when the dataset was made of them.

    Raises:
        DataError: they are not; names split and column.
    """
    for changed in _changed(splits):
        raise DataError(
            f"{changed} was changed after the dataset was made: {_HOW}. Make the dataset again, of copies "
            f"(x.copy()) if the arrays change once more."
        )


def warn(splits: Mapping[str, Split]) -> None:
    """Warn if rows are not as they were when the dataset was made of them: it is too late for an error."""
    for changed in _changed(splits):
        log.warning(
            "%s was changed while raysim worked with it: %s. Figures since then may be of the changed rows, under the "
            "fingerprint of those before. Begin again, with copies (x.copy())",
            changed,
            _HOW,
        )


def _changed(splits: Mapping[str, Split]) -> Iterator[str]:
    met: set[int] = set()
    for name, split in splits.items():
        held = _of_arrays(split)
        if held is None or id(held) in met:
            continue
        met.add(id(held))
        for column, rows, before in zip(("x", "y"), (held.x, held.y), held.checksums, strict=True):
            if before is not None and (is_cut_off(rows) or _checksum(rows) != before):
                yield f"{column} of the split {name!r}"


def _of_arrays(split: Split) -> ArraySplit | None:
    while isinstance(split, Subset):
        split = split.whole
    return split if isinstance(split, ArraySplit) else None


def _checksum(rows: npt.NDArray[Any]) -> int:
    content = rows.reshape(-1).view(np.uint8).data
    if content.nbytes <= _WHOLE_BYTES:
        return zlib.crc32(content)
    found = 0
    for start in np.linspace(0, content.nbytes - _PIECE_BYTES, _PIECES).astype(np.int64).tolist():
        found = zlib.crc32(content[start : start + _PIECE_BYTES], found)
    return found
