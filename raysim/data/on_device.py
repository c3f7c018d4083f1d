"""Loads clients' examples onto the device that trains and evaluates; every caller uses this module.

`Resident` is a split's rows as stored, in one x and one y on a device; clients' rows are gathered by index.
`concatenate` copies rows into memory that torch allocated, which fixes their alignment and so the bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.data.dataset import FederatedDataset, Split
from raysim.data.field import DTYPES, Field
from raysim.data.split import Arrays

STORED: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPES}
"""torch's dtype of each stored dtype."""


def concatenate(pieces: Sequence[npt.NDArray[Any]], pinned: bool = False) -> Tensor:
    """Copy the rows of all pieces, as stored, into one tensor on the host.

    Args:
        pieces: one or more (n, ...) arrays of one dtype; they may be read-only views of a file.
        pinned: into memory that a GPU reads directly.
    """
    num_rows = sum(len(piece) for piece in pieces)
    rows = torch.empty((num_rows, *pieces[0].shape[1:]), dtype=STORED[pieces[0].dtype.name], pin_memory=pinned)
    np.concatenate(pieces, out=rows.numpy())
    return rows


def convert(stored: Tensor, field: Field, dtype: torch.dtype) -> Tensor:
    """Convert stored rows to a model's input, on their device: integers to int64, floats to `dtype`.

    If the field has a scale or an offset, the result is `stored * scale + offset` as `dtype`. It may be `stored`
    itself, overwritten.
    """
    if field.scale != 1.0 or field.offset != 0.0:
        return stored.to(dtype).mul_(field.scale).add_(field.offset)
    return stored.to(dtype) if stored.is_floating_point() else stored.to(torch.int64)


BLOCK_BYTES = 32 * 2**20
"""An upload of a split sends this much at a time."""

_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""torch has few kernels for these dtypes: their bits are gathered as signed numbers."""

Segments = Int64s | Sequence[tuple[int, int, int]]
"""(n, 3): client position, first example, one past the last."""


class Resident(NamedTuple):
    """x: (rows, ...), y: (rows, ...), each of any stored dtype, on one device; they are not written to.
    first_rows: int64, (clients,), each client's first row.
    """

    x: Tensor
    y: Tensor
    first_rows: Int64s

    def gather(self, segments: Int64s) -> tuple[Tensor, Tensor]:
        """Return the segments' rows in order, on the same device, in new memory."""
        rows = torch.from_numpy(_rows(self.first_rows, segments)).to(self.x.device)
        return _taken(self.x, rows), _taken(self.y, rows)


def in_place(arrays: Arrays) -> Resident:
    """Return the rows on the host, over the arrays' memory."""
    with warnings.catch_warnings():
        # Arrays that processes share are read-only, which torch's tensors cannot be; nobody writes to these.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return Resident(torch.from_numpy(arrays.x), torch.from_numpy(arrays.y), arrays.first_rows)


def uploaded(dataset: FederatedDataset, split: Split, device: torch.device) -> Resident:
    """Copy all rows to the device. The split is read once, in order; the host holds a block at a time.

    Raises:
        torch.OutOfMemoryError: the device has too little memory.
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
            whole[start:stop].copy_(concatenate(pieces, pinned=device.type == "cuda"))
        start = stop
    return Resident(x, y, np.r_[0, ends[:-1]])


def _rows(first_rows: Int64s, segments: Int64s) -> Int64s:
    """Return the row numbers of segments (n, 3)."""
    position, start, stop = segments.T
    lengths = stop - start
    ends = np.cumsum(lengths)
    return np.repeat(first_rows[position] + start - (ends - lengths), lengths) + np.arange(ends[-1])


def _taken(whole: Tensor, rows: Tensor) -> Tensor:
    signed = _SIGNED.get(whole.dtype, whole.dtype)
    return whole.view(signed).index_select(0, rows).view(whole.dtype)


def _blocks(split: Split, most: int) -> Iterator[list[tuple[npt.NDArray[Any], npt.NDArray[Any]]]]:
    """Yield all rows in order, as lists of clients' pieces with at most `most` rows in total."""
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


def batch(dataset: FederatedDataset, split: str, position: int) -> tuple[Tensor, Tensor]:
    """Return all of a client's (x, y) as a module sees them in evaluation: scaled, floats in float32, others in int64.

    `dataset.split(split).client(position)` returns them as they are stored, such as the bytes of pixels.

    Raises:
        DataError: there is no such split.
        IndexError: there is no such client.
    """
    size = len(dataset.split(split).client(position)[1])
    return Examples(dataset).load(split, [(position, 0, size)], torch.empty(0))


class Examples:
    """A dataset on one worker. The place of the rows changes no bit of the result of `load`.

    Rows of an uploaded split are gathered on its device. Rows of a split in one array are gathered on the host, all
    others are read client by client; both are then sent to the device.

    Args:
        dataset: the run's.
    """

    def __init__(self, dataset: FederatedDataset) -> None:
        self.dataset = dataset
        self._in_place: dict[str, Resident | None] = {}
        self._checks: dict[str, Callable[[], None]] = {}
        self._uploaded: dict[str, Resident] = {}

    def upload(self, name: str, device: torch.device) -> None:
        """Copy a split to the device and keep it there.

        Raises:
            torch.OutOfMemoryError: the split does not fit; nothing of it stays on the device.
        """
        self._uploaded[name] = uploaded(self.dataset, self.dataset.split(name), device)

    def let_go(self) -> bool:
        """Free the uploaded splits; return whether there were any."""
        had = bool(self._uploaded)
        self._uploaded.clear()
        return had

    def load(self, name: str, segments: Segments, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the segments' (x, y), converted (see `convert`) to the device and dtype of `like`, in order.

        Args:
            name: of the split.
            segments: at least one, and at least one example in all.
            like: any tensor.
        """
        x, y = self._stored(name, np.asarray(segments, np.int64))
        return (
            convert(x.to(like.device), self.dataset.x, like.dtype),
            convert(y.to(like.device), self.dataset.y, like.dtype),
        )

    def _stored(self, name: str, segments: Int64s) -> tuple[Tensor, Tensor]:
        resident = self._uploaded.get(name) or self._whole(name)
        if resident is not None:
            return resident.gather(segments)
        split = self.dataset.split(name)
        # Once each: a generated client is computed, and a sample of its examples is many segments.
        pieces = segments.tolist()
        clients = {position: split.client(position) for position in dict.fromkeys(p for p, _, _ in pieces)}
        x, y = (concatenate([clients[p][side][start:stop] for p, start, stop in pieces]) for side in (0, 1))
        return x, y

    def _whole(self, name: str) -> Resident | None:
        """Return the split on the host if it is in one array, else None; the first call looks it up.

        Raises:
            DataError: its rows are no longer what they were.
        """
        if name not in self._in_place:
            arrays = self.dataset.split(name).arrays()
            self._in_place[name] = None if arrays is None else in_place(arrays)
            if arrays is not None:
                self._checks[name] = arrays.check
        if name in self._checks:
            self._checks[name]()
        return self._in_place[name]
