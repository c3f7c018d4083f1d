"""A split's rows in one x and one y on a device, as stored, of which any clients' are gathered by index."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.client.load import STORED, joined
from raysim.data.arrays import Arrays
from raysim.data.dataset import FederatedDataset, Split
from raysim.seeds import Int64s

BLOCK_BYTES = 32 * 2**20
"""Of a split that is uploaded, so much is on its way at a time."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""torch has few kernels for these: their bits are gathered as those of signed numbers."""

Segment = tuple[int, int, int]
"""(client position, first example, one past the last)."""


class Resident(NamedTuple):
    """x: (rows, ...), y: (rows, ...), one of any stored dtype each, on one device; they are not written to.
    first_rows: int64, (clients,), where each client's rows begin.
    """

    x: Tensor
    y: Tensor
    first_rows: Int64s

    def gather(self, segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        """The segments' rows one behind the other, on the same device, in memory of their own."""
        rows = torch.from_numpy(_rows(self.first_rows, np.array(segments, np.int64))).to(self.x.device)
        return _taken(self.x, rows), _taken(self.y, rows)


def in_place(arrays: Arrays) -> Resident:
    """On the host, over the arrays' own memory."""
    with warnings.catch_warnings():
        # Arrays that processes share are read-only, which torch's tensors cannot be; nobody writes to these.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return Resident(torch.from_numpy(arrays.x), torch.from_numpy(arrays.y), arrays.first_rows)


def uploaded(dataset: FederatedDataset, split: Split, device: torch.device) -> Resident:
    """A copy of all rows on the device. The split is read once, in order; the host holds a block at a time.

    Raises:
        torch.OutOfMemoryError: the device has not as much memory.
    """
    ends = np.cumsum(split.sizes())
    x, y = (
        torch.empty((int(ends[-1]), *field.shape), dtype=STORED[field.dtype], device=device)
        for field in (dataset.x, dataset.y)
    )
    most = max(1, BLOCK_BYTES // (dataset.x.example_bytes + dataset.y.example_bytes))
    start = 0
    for block in _blocks(split, most):
        stop = start + sum(len(client_y) for _, client_y in block)
        for whole, pieces in zip((x, y), zip(*block, strict=True), strict=True):
            whole[start:stop].copy_(joined(pieces, pinned=device.type == "cuda"))
        start = stop
    return Resident(x, y, np.r_[0, ends[:-1]])


def _rows(first_rows: Int64s, segments: Int64s) -> Int64s:
    """The numbers of the segments' rows, of segments (n, 3)."""
    position, start, stop = segments.T
    lengths = stop - start
    ends = np.cumsum(lengths)
    return np.repeat(first_rows[position] + start - (ends - lengths), lengths) + np.arange(ends[-1])


def _taken(whole: Tensor, rows: Tensor) -> Tensor:
    signed = _SIGNED.get(whole.dtype, whole.dtype)
    return whole.view(signed).index_select(0, rows).view(whole.dtype)


def _blocks(split: Split, most: int) -> Iterator[list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]]:
    """All rows in order, as lists of pieces of clients with at most `most` rows together."""
    block, room = [], most
    for position in range(len(split)):
        x, y = split.client(position)
        start = 0
        while start < len(y):
            stop = min(len(y), start + room)
            block.append((x[start:stop], y[start:stop]))
            room -= stop - start
            start = stop
            if room == 0:
                yield block
                block, room = [], most
    if block:
        yield block
