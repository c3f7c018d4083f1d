"""Defines the keys of sources with natural clients, and divides their examples."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from pydantic import BaseModel, model_validator
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.values import Count, Seed
from raysim.data.dealing import deal_test
from raysim.data.holdout import ClientsShare, ExamplesShare, Holdout, check_holdout, hold_out_examples
from raysim.data.partitions.natural import Natural, natural
from raysim.data.partitions.partition import Partition, classes, divide
from raysim.data.partitions.shuffled import Shuffled, mix
from raysim.data.source import ClientRows, Population
from raysim.errors import DataError, ExperimentError
from raysim.seeds import key, permutation

log = logging.getLogger("raysim")


class Populated(BaseModel):
    """Keys of every source with natural clients."""

    partition: Partition = Key(
        Natural(),
        description=(
            '"natural" keeps the source\'s clients, streaming from file to file; any other pools their training '
            "examples in memory and divides those."
        ),
    )
    clients: Count | None = Key(
        None,
        description=(
            "Natural: training clients at most, drawn by the seed before `min_examples` leaves any out; absent: "
            "all. Otherwise their number, which is required. Validation clients are included."
        ),
    )
    min_examples: Count = Key(
        1,
        description=(
            "Training clients with fewer examples are left out. Natural clients are left out of the test split too, "
            "unless it is pooled; else test examples stay."
        ),
    )
    max_examples: Count | None = Key(
        None, description="A training client keeps this many of its first examples. Absent: all."
    )
    mix: float = Key(
        0.0,
        ge=0,
        le=1,
        description=(
            "From 0 (the partition) to 1 (its sizes, with training examples drawn at random). Natural clients keep "
            "their ids and test examples, and are mixed in memory."
        ),
    )
    holdout: ClientsShare = 0.0
    holdout_examples: ExamplesShare = 0.0
    test_clients: Literal["own", "partition", "pooled"] = Key(
        "own",
        description=(
            '"own": the source\'s test clients; "partition": the clients of the partition get the test examples, '
            'each class in proportion to their training examples of it; "pooled": one client named "test" has them '
            "all."
        ),
    )
    seed: Seed | None = Key(None, description="Seed of every draw above. Absent: the experiment's.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        is_natural = isinstance(self.partition, Natural)
        own_sizes = isinstance(self.partition, Shuffled) and isinstance(self.partition.sizes_of, Natural)
        if self.clients is None and not is_natural and not own_sizes:
            raise ValueError(f"partition {self.partition.name!r} needs clients = their number")
        if self.clients is not None and own_sizes:
            raise ValueError(
                "partition 'shuffled' with the sizes of 'natural' has the source's clients: remove clients"
            )
        if is_natural and self.test_clients == "partition":
            raise ValueError(
                "test_clients = 'partition' deals test examples by a partition; natural clients keep their own"
            )
        if self.holdout and self.holdout_examples:
            check_holdout(self.clients or 2, self.holdout, self.holdout_examples)
        return self


def populate(section: Populated, population: Population, seed: int) -> Iterator[ClientRows]:
    """Yield the rows of the section's dataset, in the order in which they are written.

    Raises:
        DataError: from the source, or if no training client is left.
        ExperimentError: a partition by label of examples without a single label, or holdout from a source that has
            validation clients.
    """
    if isinstance(section.partition, Natural):
        return _naturally(section, population, seed)
    return _anew(section, population, seed)


def _naturally(section: Populated, population: Population, seed: int) -> Iterator[ClientRows]:
    ids = list(population.train_ids())
    chosen = range(len(ids))
    if section.clients is not None and section.clients < len(ids):
        chosen = np.sort(permutation(key(seed, "clients"), len(ids))[: section.clients]).tolist()
    taken = {ids[number]: place for place, number in enumerate(chosen)}
    check_holdout(len(taken), section.holdout, 0.0)
    holdout = Holdout(len(taken), section.holdout, seed)
    validating = set(holdout.validation().tolist()) if section.holdout else set()
    stream = _chosen(section, population, taken.keys())
    left = Counter[bool]()
    for rows in _mixed(stream, section.mix, seed) if section.mix else stream:
        if rows.split == "train":
            place = taken[rows.client]
            left[place in validating] += 1
            yield from _held_out(rows, place, place in validating, section, seed)
        else:
            yield rows
    if section.holdout and not (left[False] and left[True]):
        raise DataError(
            f"data.holdout and data.min_examples = {section.min_examples} must leave at least one training and one "
            f"validation client, but {left[False]} of {holdout.num_train} and {left[True]} of "
            f"{holdout.num_validation} are left"
        )


def _chosen(section: Populated, population: Population, taken: Collection[str]) -> Iterator[ClientRows]:
    """Yield the rows of those who take part, training clients whole; DataError if none is left of these or of the
    test's."""
    trained: set[str] = set()
    left_out: set[str] = set()
    others: dict[str, Counter[bool]] = {}
    for rows in _whole_clients(population.stream()):
        if rows.split == "train":
            if rows.client in taken and len(rows.y) >= section.min_examples:
                trained.add(rows.client)
                kept = slice(None, section.max_examples)
                yield rows._replace(x=rows.x[kept], y=rows.y[kept])
            else:
                left_out.add(rows.client)
            continue
        is_pooled = rows.split == "test" and section.test_clients == "pooled"
        is_left = is_pooled or rows.client not in left_out
        others.setdefault(rows.split, Counter())[is_left] += len(rows.y)
        if is_pooled:
            yield rows._replace(client="test")
        elif is_left:
            _check_validation(section, rows.split)
            yield rows
    if not trained:
        raise _nobody_left(section, population)
    for split, examples in others.items():
        if examples[False] and not examples[True]:
            lost = _nobody_tested(section, split, examples[False])
            if split == "test":
                raise lost
            # Most runs do not evaluate on it.
            log.warning("%s", lost)


def _nobody_left(section: Populated, population: Population) -> DataError:
    return DataError(
        f"at least one training client must be left, but none of {len(population.train_ids()):,} has min_examples "
        f"= {section.min_examples} examples"
    )


def _nobody_tested(section: Populated, split: str, examples: int) -> DataError:
    advice = ", or data.test_clients = 'pooled' keeps their examples" if split == "test" else ""
    return DataError(
        f"at least one {split} client must be left, but all {examples:,} examples of the split are of clients who are "
        f"left out of training, by data.clients or data.min_examples = {section.min_examples}: change these{advice}"
    )


def _mixed(stream: Iterator[ClientRows], share: float, seed: int) -> Iterator[ClientRows]:
    """Yield the stream, training clients having given a share of their examples to all; these wait in memory."""
    waiting: list[ClientRows] = []
    for rows in stream:
        if rows.split == "train":
            waiting.append(rows)
            continue
        yield from _exchanged(waiting, share, seed)
        waiting = []
        yield rows
    yield from _exchanged(waiting, share, seed)


def _exchanged(clients: list[ClientRows], share: float, seed: int) -> Iterator[ClientRows]:
    if clients:
        pool = _pooled(clients)
        for client, part in zip(clients, mix(natural(pool.keys), share, seed), strict=True):
            yield client._replace(x=pool.rows.x[part], y=pool.rows.y[part])


def _held_out(whole: ClientRows, place: int, validates: bool, section: Populated, seed: int) -> Iterator[ClientRows]:
    if validates:
        yield whole._replace(split="validation")
    elif section.holdout_examples:
        everything = np.arange(len(whole.y), dtype=np.int64)
        pair = hold_out_examples(everything, section.holdout_examples, place, seed)
        for split, rows in zip(("train", "validation"), pair, strict=True):
            yield ClientRows(split, whole.client, whole.x[rows], whole.y[rows])
    else:
        yield whole


def _check_validation(section: Populated, split: str) -> None:
    if split == "validation" and (section.holdout or section.holdout_examples):
        raise ExperimentError("this source has validation clients of its own: remove data.holdout and holdout_examples")


def _whole_clients(stream: Iterator[ClientRows]) -> Iterator[ClientRows]:
    """Yield rows, the pieces of each training client joined; clients of other splits pass unchanged."""
    pieces: list[ClientRows] = []
    for rows in stream:
        if pieces and (rows.split, rows.client) != ("train", pieces[0].client):
            yield _joined(pieces)
            pieces = []
        if rows.split == "train":
            pieces.append(rows)
        else:
            yield rows
    if pieces:
        yield _joined(pieces)


def _joined(pieces: list[ClientRows]) -> ClientRows:
    if len(pieces) == 1:
        return pieces[0]
    x, y = np.concatenate([piece.x for piece in pieces]), np.concatenate([piece.y for piece in pieces])
    return ClientRows(pieces[0].split, pieces[0].client, x, y)


@dataclass(frozen=True, eq=False)
class _Pool:
    """A split's examples, client by client; `keys` is the client of each."""

    rows: ClientRows
    keys: Int64s


def _pooled(parts: list[ClientRows]) -> _Pool:
    sizes = [len(part.y) for part in parts]
    return _Pool(_joined(parts), np.repeat(np.arange(len(parts), dtype=np.int64), sizes))


def _anew(section: Populated, population: Population, seed: int) -> Iterator[ClientRows]:
    by_split: dict[str, list[ClientRows]] = {}
    kept = slice(None, section.max_examples)
    for rows in _whole_clients(population.stream()):
        if rows.split == "train":
            if len(rows.y) < section.min_examples:
                continue
            rows = rows._replace(x=rows.x[kept], y=rows.y[kept])
        by_split.setdefault(rows.split, []).append(rows)
    if "train" not in by_split:
        raise _nobody_left(section, population)
    if section.test_clients == "partition" and "test" not in by_split:
        raise DataError("data.test_clients = 'partition' deals the test examples, but this source has none: remove it")
    train = _pooled(by_split["train"])
    labels = _labels(section, population, train.rows)
    parts = divide(section.partition, labels, section.clients or 0, seed, train.keys)
    parts = mix(parts, section.mix, seed)
    check_holdout(len(parts), section.holdout, section.holdout_examples)
    holdout = Holdout(len(parts), section.holdout, seed)
    validating = set(holdout.validation().tolist()) if section.holdout else set()
    for number, part in enumerate(parts):
        whole = ClientRows("train", str(number), train.rows.x[part], train.rows.y[part])
        yield from _held_out(whole, number, number in validating, section, seed)
    for split in ("validation", "test"):
        if split == "test" and section.test_clients == "partition":
            test = _pooled(by_split["test"]).rows
            dealt = deal_test(parts, labels, _labels(section, population, test), seed)
            for number, part in enumerate(dealt):
                yield ClientRows("test", str(number), test.x[part], test.y[part])
            continue
        for rows in by_split.get(split, ()):
            _check_validation(section, split)
            pooled = split == "test" and section.test_clients == "pooled"
            yield rows._replace(client="test") if pooled else rows


def _labels(section: Populated, population: Population, rows: ClientRows) -> Int64s:
    """Return each example's label; all equal if examples have no label, or many."""
    found = "no label" if population.num_classes is None else f"{population.y.values} labels"
    has_one = population.num_classes is not None and not population.y.shape
    return classes(section.partition, rows.y, None if has_one else f"an example of this source has {found}")
