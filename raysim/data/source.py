"""Defines the result of reading a source before its division: labelled examples, or natural clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data.field import Field

LABEL = Field((), "int64")


@dataclass(frozen=True, eq=False)
class SourceExamples:
    """Training and test examples of a classification source.

    Attributes:
        x: the features' field; `train_x` is (training examples, *x.shape) and `test_x` (test examples, *x.shape).
        num_classes: labels are int64 in 0..num_classes - 1.
        coarse_of: the coarse label of every label, (num_classes,), if there are two levels; else None.
    """

    x: Field
    num_classes: int
    train_x: npt.NDArray[Any]
    train_y: Int64s
    test_x: npt.NDArray[Any]
    test_y: Int64s
    coarse_of: Int64s | None = None


class Source(NamedTuple):
    """Labelled examples, not read yet: `address` is JSON-able and determines the content; `load` reads and checks.

    `words` reads the vocabulary of texts, in the order of the words' numbers; None: the source has none.
    """

    address: dict[str, Any]
    load: Callable[[], SourceExamples]
    words: Callable[[], list[str]] | None = None


class ClientRows(NamedTuple):
    """Some or all of a client's examples: x (rows, *x.shape) and y (rows, *y.shape), as stored."""

    split: str
    client: str
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Population:
    """Clients of a source: writers, users, roles; only `train_ids` and `stream` read much of its files.

    Attributes:
        address: JSON-able; everything that determines the content.
        x: the features' field.
        y: the targets' field.
        num_classes: labels are in 0..num_classes - 1; None: regression.
        train_ids: lists the training clients, in the order of `stream`.
        stream: all examples, split by split, client by client, "train" first; a client's rows may come in several
            pieces, one directly after the other.
        splits: those which have examples in files that are whole.
    """

    address: dict[str, Any]
    x: Field
    y: Field
    num_classes: int | None
    train_ids: Callable[[], Sequence[str]]
    stream: Callable[[], Iterator[ClientRows]]
    splits: tuple[str, ...] = ("train", "test")
