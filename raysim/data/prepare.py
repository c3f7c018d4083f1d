"""Prepares and opens the dataset of a `[data]` section."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raysim.arrays import Int64s
from raysim.data import downloads
from raysim.data.cache import open_or_build
from raysim.data.dataset import FederatedDataset
from raysim.data.fingerprint import address_digest
from raysim.data.generated_split import GeneratedSplit
from raysim.data.holdout import Holdout
from raysim.data.partitioned import Partitioned, assign
from raysim.data.populated import Populated, populate
from raysim.data.section import AnyData, paths
from raysim.data.source import LABEL, ClientRows, Population, Source, SourceExamples
from raysim.data.sources import (
    ag_news,
    cifar,
    digits,
    emnist,
    emnist_idx,
    fed_cifar100,
    gld,
    instructions,
    leaf,
    mnist,
    newsgroups,
    quadratic,
    shakespeare,
    stackoverflow,
    table,
)
from raysim.data.sources.published import SourceFile, digested
from raysim.data.sources.synthetic import CLASSES, FEATURES, Part, Synthetic, SyntheticClients, synthetic_address
from raysim.data.writer import DatasetWriter
from raysim.errors import DataError, MissingFileError
from raysim.storage.reading import parsing

# Changes whenever the same source, section and seed give another division, so that no cache returns the old one.
_DIVISION = 1

_SOURCES: Mapping[type[Partitioned], Callable[[Any, int], Source]] = MappingProxyType(
    {
        digits.Digits: lambda section, seed: digits.open_source(seed),
        mnist.Mnist: lambda section, _: mnist.open_source(section),
        mnist.FashionMnist: lambda section, _: mnist.open_source(section),
        emnist_idx.EmnistIdx: lambda section, _: emnist_idx.open_source(section),
        cifar.Cifar10: lambda section, _: cifar.open_cifar10(section),
        cifar.Cifar100: lambda section, _: cifar.open_cifar100(section),
        ag_news.AgNews: lambda section, _: ag_news.open_source(section),
        newsgroups.Newsgroups: lambda section, _: newsgroups.open_source(section),
    }
)
_POPULATIONS: Mapping[type[Populated], Callable[[Any], Population]] = MappingProxyType(
    {
        emnist.Emnist: emnist.open_source,
        fed_cifar100.FedCifar100: fed_cifar100.open_source,
        shakespeare.Shakespeare: shakespeare.open_source,
        stackoverflow.Stackoverflow: stackoverflow.open_source,
        leaf.Leaf: leaf.open_source,
        gld.Gld: gld.open_source,
        instructions.Instructions: instructions.open_source,
        table.Table: table.open_source,
    }
)


def prepare(section: AnyData, seed: int) -> FederatedDataset:
    """Prepare a section's dataset on first use; open it from the cache after that.

    Args:
        section: source, partition and holdout.
        seed: the experiment's; used if the section has none.

    Raises:
        MissingFileError: a file of the source is missing; states where to get it.
        DataError: one is damaged.
        ExperimentError: this source does not have the section's partition.
    """
    seed = seed if section.seed is None else section.seed
    if isinstance(section, Synthetic):
        return _generated(section, seed)
    if isinstance(section, quadratic.Quadratic):
        return _quadratic(section, seed)
    try:
        if isinstance(section, Populated):
            with _reading(section), digested() as files:
                population = _POPULATIONS[type(section)](section)
            return _populated(section, seed, population, files)
        with _reading(section), digested() as files:
            source = _SOURCES[type(section)](section, seed)
        return _divided(section, seed, source, files)
    except MissingFileError as missing:
        if not downloads.offered(section):
            raise
        advice = "or let `raysim data prepare` fetch what is missing, with --download"
        raise MissingFileError(f"{missing}, {advice}") from None


def vocabulary(section: AnyData) -> list[str] | None:
    """Return the words of a section's texts in the order of their numbers, the first one's being 2; None: it has none.

    Raises:
        DataError: see `prepare`.
    """
    if not isinstance(section, Partitioned):
        return None
    with _reading(section):
        source = _SOURCES[type(section)](section, 0)
        return None if source.words is None else source.words()


def _divided(section: Partitioned, seed: int, source: Source, files: Sequence[SourceFile]) -> FederatedDataset:
    def build(path: Path) -> None:
        with _reading(section):
            examples = source.load()
        _write(path, examples, section, seed, source.address)
        _check_unchanged(files)

    return open_or_build(_address(section, seed, source.address), build)


def _populated(section: Populated, seed: int, population: Population, files: Sequence[SourceFile]) -> FederatedDataset:
    folder = getattr(section, "root", None) or "the folder of its files"

    def nobody(split: str) -> DataError:
        name = "training" if split == "train" else split
        return DataError(f"{folder} holds no {name} client with an example: a file is empty, or cut off")

    def stream() -> Iterator[ClientRows]:
        met = Counter[str]()
        with _reading(section):
            for rows in population.stream():
                met[rows.split] += len(rows.y)
                if rows.split != "train" and not met["train"]:
                    raise nobody("train")
                yield rows
        for split in population.splits:
            if not met[split]:
                raise nobody(split)

    def train_ids() -> Sequence[str]:
        with _reading(section):
            found = population.train_ids()
        if not found:
            raise nobody("train")
        return found

    def build(path: Path) -> None:
        read = replace(population, stream=stream, train_ids=train_ids)
        x, y, provenance = population.x, population.y, _provenance(section, seed, population.address)
        with DatasetWriter(path, x, y, population.num_classes, provenance=provenance) as writer:
            for rows in populate(section, read, seed):
                try:
                    writer.write(rows.split, rows.client, rows.x, rows.y)
                except DataError as error:
                    # The writer knows clients and rows, but not whose they are.
                    raise DataError(f"{folder}: {error}") from None
        _check_unchanged(files)

    return open_or_build(_address(section, seed, population.address), build)


def _check_unchanged(files: Sequence[SourceFile]) -> None:
    # What was prepared lies under the address of these digests.
    for file in files:
        file.check_unchanged()


def _reading(section: Partitioned | Populated) -> AbstractContextManager[None]:
    """Turn what a source's parser raises into a DataError; most readers already name the file."""
    name = type(section).model_fields["name"].default
    return parsing(f"A file of data.name = {name!r}", "data as they are published", DataError, verdict="")


def _address(section: Partitioned | Populated, seed: int, source: dict[str, Any]) -> dict[str, Any]:
    settings = section.model_dump(mode="json", exclude=paths(section) | {"seed"})
    return {"division": _DIVISION, "source": source, "section": settings, "seed": seed}


def _provenance(section: Partitioned | Populated, seed: int, source: dict[str, Any]) -> dict[str, str]:
    return {
        "source": str(source["name"]),
        "section": section.model_dump_json(exclude={*paths(section), "seed"}),
        "seed": str(seed),
    }


def _write(path: Path, examples: SourceExamples, section: Partitioned, seed: int, source: dict[str, Any]) -> None:
    assignment = assign(section, examples.train_y, examples.test_y, seed, examples.coarse_of)
    provenance = _provenance(section, seed, source)
    with DatasetWriter(path, examples.x, LABEL, examples.num_classes, provenance=provenance) as writer:
        for split, clients in assignment.items():
            tested = split == "test"
            x, y = (examples.test_x, examples.test_y) if tested else (examples.train_x, examples.train_y)
            for client_id, rows in clients:
                writer.write(split, client_id, x[rows], y[rows])


def _generated(section: Synthetic, seed: int) -> FederatedDataset:
    """Return the section's clients, each computed on access."""

    def part(name: Part, num_clients: int, members: Callable[[], Int64s] | None = None) -> GeneratedSplit:
        return GeneratedSplit(SyntheticClients(section, seed, name), num_clients, members)

    train, validation = part("train", section.clients), None
    if section.holdout:
        holdout = Holdout(section.clients, section.holdout, seed)
        train = part("train", holdout.num_train, holdout.train)
        validation = part("train", holdout.num_validation, holdout.validation)
    elif section.holdout_examples:
        validation = part("validation", section.clients)
    return FederatedDataset(
        train=train,
        validation=validation,
        test=part("test", section.clients),
        x=FEATURES,
        y=LABEL,
        num_classes=CLASSES,
        fingerprint=address_digest(synthetic_address(section, seed)),
    )


def _quadratic(section: quadratic.Quadratic, seed: int) -> FederatedDataset:
    """Return the section's clients, each computed on access, and their optimum, computed when first needed."""
    whole = FederatedDataset(
        train=GeneratedSplit(quadratic.QuadraticClients(section, seed), section.clients),
        validation=None,
        test=None,
        x=section.features,
        y=quadratic.TARGET,
        num_classes=None,
        fingerprint=address_digest(quadratic.quadratic_address(section, seed)),
        optimum=partial(quadratic.optimum, section, seed),
    )
    return whole.hold_out(section.holdout, seed) if section.holdout else whole
