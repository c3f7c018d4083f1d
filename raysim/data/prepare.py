"""From a `[data]` section to an opened dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_never

from raysim.data.cache import prepared
from raysim.data.dataset import FederatedDataset
from raysim.data.fingerprint import address_digest
from raysim.data.generated_split import GeneratedSplit
from raysim.data.holdout import Holdout
from raysim.data.partitioned import Partitioned, assign
from raysim.data.section import Digits, FashionMnist, Mnist, Synthetic
from raysim.data.sources.digits import digits_address, load_digits
from raysim.data.sources.examples import LABEL, Examples
from raysim.data.sources.mnist import MnistFiles
from raysim.data.sources.synthetic import CLASSES, FEATURES, Part, SyntheticClients, synthetic_address
from raysim.data.writer import DatasetWriter
from raysim.seeds import Int64s

# Changes whenever the same source, section and seed are divided otherwise, so that no cache answers with the old way.
_DIVISION = 1


def prepare(section: Digits | Synthetic | Mnist | FashionMnist, seed: int) -> FederatedDataset:
    """The dataset that a section asks for, made on first use and opened from the cache after that.

    Args:
        section: source, partition and holdout.
        seed: the experiment's; used where the section has none of its own.

    Raises:
        DataError: a file of the source is missing or damaged.
        ExperimentError: the partition asked for does not exist for this source.
    """
    seed = seed if section.seed is None else section.seed
    match section:
        case Synthetic():
            return _generated(section, seed)
        case Digits():
            return _divided(section, seed, digits_address(), lambda: load_digits(seed))
        case Mnist() | FashionMnist():
            files = MnistFiles.find(section)
            return _divided(section, seed, files.address(), files.load)
        case _:
            assert_never(section)


def _divided(section: Partitioned, seed: int, source: dict[str, Any], load: Callable[[], Examples]) -> FederatedDataset:
    def build(path: Path) -> None:
        _write(path, load(), section, seed, source)

    # A path says nothing about content, the source's address does.
    settings = section.model_dump(mode="json", exclude={"root", "seed"})
    return prepared({"division": _DIVISION, "source": source, "section": settings, "seed": seed}, build)


def _write(path: Path, examples: Examples, section: Partitioned, seed: int, source: dict[str, Any]) -> None:
    assignment = assign(section, examples.train_y, examples.test_y, seed)
    provenance = {
        "source": str(source["name"]),
        "section": section.model_dump_json(exclude={"root"}),
        "seed": str(seed),
    }
    with DatasetWriter(path, examples.x, LABEL, examples.num_classes, provenance=provenance) as writer:
        for split, clients in assignment.items():
            tested = split == "test"
            x, y = (examples.test_x, examples.test_y) if tested else (examples.train_x, examples.train_y)
            for client_id, rows in clients:
                writer.write(split, client_id, x[rows], y[rows])


def _generated(section: Synthetic, seed: int) -> FederatedDataset:
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
