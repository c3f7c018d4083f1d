"""A source that has clients of its own: writers, users, roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from raysim.data.field import Field


class ClientRows(NamedTuple):
    """Some or all of a client's examples: x (rows, *x.shape) and y (rows, *y.shape), as stored."""

    split: str
    client: str
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Population:
    """What a source promises of its clients; nothing but `address` and `train_ids` reads much of its files.

    Attributes:
        address: JSON-able; everything that determines the content.
        x: the features' field.
        y: the targets' field.
        num_classes: labels are in 0..num_classes - 1; None: regression.
        train_ids: lists the training clients, in the order of `stream`.
        stream: all examples, split by split, client by client, "train" first; a client's rows may come in several
            pieces, one directly after the other.
    """

    address: dict[str, Any]
    x: Field
    y: Field
    num_classes: int | None
    train_ids: Callable[[], Sequence[str]]
    stream: Callable[[], Iterator[ClientRows]]
