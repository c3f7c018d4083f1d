"""Computes the content address of a dataset; it is equal if and only if fields, classes and splits are equal."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.data.field import Field

_DIGEST_BYTES = 16
_VERSION = 1

SPLITS = ("train", "validation", "test")


def _hasher() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_DIGEST_BYTES)


def _add(hasher: hashlib.blake2b, rows: npt.NDArray[Any]) -> None:
    if rows.size:  # hashlib refuses empty buffers of several dimensions
        hasher.update(np.ascontiguousarray(rows).data.cast("B"))


class SplitDigest:
    """Hashes one split as it streams by.

    Rows and clients go to separate hashes. So the digest does not depend on how calls cut the rows, or on whether a
    client's size is known before its rows.
    """

    def __init__(self) -> None:
        self._clients, self._x, self._y = _hasher(), _hasher(), _hasher()

    def rows(self, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """Add the next rows of the split, as stored."""
        _add(self._x, x)
        _add(self._y, y)

    def client(self, client_id: str, num_rows: int) -> None:
        """Add the next client, in order of position."""
        encoded = client_id.encode()
        self._clients.update(f"{len(encoded)} {num_rows} ".encode() + encoded)

    def hexdigest(self) -> str:
        """Return the split's digest so far."""
        return self._clients.hexdigest() + self._x.hexdigest() + self._y.hexdigest()


def fingerprint(x: Field, y: Field, num_classes: int | None, splits: dict[str, SplitDigest]) -> str:
    """Return the dataset's fingerprint: blake2b over the fields and the splits' digests, 32 hex digits.

    Args:
        x: the features' field.
        y: the targets' field.
        num_classes: of the targets; None for regression.
        splits: digest of each split that exists, in any order.
    """
    return address_digest(
        {
            "fingerprint": _VERSION,
            "x": [list(x.shape), x.dtype, x.scale, x.offset],
            "y": [list(y.shape), y.dtype, y.scale, y.offset, *_marks(y)],
            "num_classes": num_classes,
            "splits": {name: splits[name].hexdigest() for name in SPLITS if name in splits},
        }
    )


def _marks(y: Field) -> list[Any]:
    """Return the meaning of labels beyond their number; empty if every label is a class."""
    marks = [] if y.padding is None and not y.uncounted else [y.padding, list(y.uncounted)]
    return [*marks, "by_place"] if y.by_place else marks


def address_digest(address: dict[str, Any]) -> str:
    """Return the digest of a JSON-able description, 32 hex digits; independent of the order of its keys."""
    text = json.dumps(address, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
