"""Defines FederatedDataset, the only form of data that the rest of raysim uses."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from raysim.config import messages
from raysim.config.call_advice import advised_class
from raysim.config.values import is_whole
from raysim.data import targets
from raysim.data.array_split import ArraySplit
from raysim.data.arrow_split import ArrowSplit
from raysim.data.client_arrays import is_number
from raysim.data.copies import describe, fetch_copy
from raysim.data.dealt_source import dealt
from raysim.data.field import OF_TABLES, TABLES, Field
from raysim.data.fingerprint import SPLITS, SplitDigest, address_digest, fingerprint
from raysim.data.gather import Clients, gather
from raysim.data.holdout import Holdout, check_holdout
from raysim.data.manifest import FILE, read_manifest
from raysim.data.optimum import Optimum
from raysim.data.split import Split
from raysim.data.subset import Subset
from raysim.errors import DataError
from raysim.storage.remote.remote import Remote
from raysim.storage.remote.uri import uri_of

__all__ = ["FederatedDataset", "Field", "Split"]

MEANT = MappingProxyType({"val": "validation", "valid": "validation", "dev": "validation"})
"""Words that people use for a split."""


@advised_class("FederatedDataset.from_clients({id: (x, y), ...}) makes one of arrays, and open(path) reads one")
@dataclass(frozen=True, eq=False)
class FederatedDataset:
    """Train, validation and test splits of clients; immutable, and cheap to send between processes.

    Attributes:
        train: the training clients, each with at least one example.
        validation: clients to choose hyper-parameters on, or None.
        test: clients to report on, or None. Ids may or may not be those of training clients; sizes may be 0.
        x: the features' field.
        y: the targets' field.
        num_classes: labels are in 0..num_classes - 1; None: regression on floating targets.
        fingerprint: content address in hex. The same content (fields, num_classes, ids, order, x, y, splits) has the
            same address in memory and on disk. A generated dataset is addressed by its parameters, and one with
            clients held out by the original's fingerprint, share and seed.
        optimum: returns the linear model without bias whose squared error over the training examples is least; None:
            it is not known.

    Its text, which a notebook shows, is that of `raysim data prepare`.
    """

    train: Split
    validation: Split | None
    test: Split | None
    x: Field
    y: Field
    num_classes: int | None
    fingerprint: str
    optimum: Callable[[], Optimum] | None = None

    def __post_init__(self) -> None:
        if self.train is None:
            raise DataError("a dataset must have training clients, but train is None")

    def __repr__(self) -> str:
        from raysim.data.describe import summary

        return f"FederatedDataset\n{summary(self)}"

    @property
    def splits(self) -> dict[str, Split]:
        """The splits that exist, by name, in the order train, validation, test."""
        found: dict[str, Split | None] = {name: getattr(self, name) for name in SPLITS}
        return {name: split for name, split in found.items() if split is not None}

    def split(self, name: str) -> Split:
        """Return the split of that name; DataError with the existing names if there is none."""
        if name not in self.splits:
            way = messages.nearest(
                name, list(self.splits), {word: MEANT[word] for word in MEANT if self.validation is not None}
            )
            if self.validation is None and name in ("validation", *MEANT):
                way = "; data.holdout, or dataset.hold_out(share), makes the split 'validation'"
            raise DataError(f"no split {name!r} in this dataset; it has: {', '.join(self.splits)}{way}")
        return self.splits[name]

    def hold_out(self, share: float, seed: int = 0) -> FederatedDataset:
        """Return the dataset with some training clients as the validation split, chosen as by `data.holdout`.

        Args:
            share: of the training clients, in (0, 1).
            seed: addresses the choice.

        Raises:
            DataError: there is a validation split already, or the share leaves no client on one side.
        """
        if self.validation is not None:
            raise DataError(
                "this dataset has validation clients of its own, so none of the training clients is held out"
            )
        if not (is_number(share) and 0 < share < 1):
            raise DataError(f"the share to hold out must be in (0, 1), but got {share!r}")
        if not is_whole(seed):
            raise DataError(f"the seed of what is held out must be a whole number, but got {seed!r}")
        # Numbers of NumPy's kinds are the same choice.
        share, seed = float(share), int(seed)
        try:
            check_holdout(len(self.train), share, 0.0)
        except ValueError as error:
            raise DataError(str(error)) from None
        holdout = Holdout(len(self.train), share, seed)
        return replace(
            self,
            train=Subset(self.train, holdout.train()),
            validation=Subset(self.train, holdout.validation()),
            fingerprint=address_digest({"of": self.fingerprint, "holdout": share, "seed": seed}),
            optimum=None,
        )

    @classmethod
    def from_clients(
        cls, train: Clients, test: Clients | None = None, validation: Clients | None = None
    ) -> FederatedDataset:
        """Return a dataset of arrays, one pair (x, y) per client.

        Integer targets mean classification, with 1 + the largest label over all splits as the number of classes;
        floating targets mean regression; a warning names labels that are counted from 1, and one-hot rows. Values are
        not checked otherwise: NaN may be intended. Arrays are copied, so that a script may go on using its own; those
        that are read-only (`array.flags.writeable = False`) are shared, if the clients are consecutive slices of one
        array. Nothing may write to these by an older view, or to a file that they map: a run that begins later is
        refused, and one under way warns at its end. Of arrays above 64 MiB, 256 pieces are compared.

        Args:
            train: id (str or int) -> (x, y), anything `np.asarray` takes; the order is the order of positions.
            test: likewise; clients may be empty. None or an empty mapping: no such split.
            validation: likewise.

        Raises:
            DataError: no training client, or a client that does not fit; names client and split.
        """
        trained = gather("train", train)
        x, y = Field.of(trained.x), Field.of(trained.y)
        splits = {"train": trained}
        for name, clients in (("validation", validation), ("test", test)):
            if clients:
                splits[name] = gather(name, clients, x, y)
        num_classes = None if y.is_floating else 1 + max(_largest_label(*item) for item in splits.items())
        targets.warn([split.y for split in splits.values()])
        digests = {name: _digest(split) for name, split in splits.items()}
        return cls(
            train=trained,
            validation=splits.get("validation"),
            test=splits.get("test"),
            x=x,
            y=y,
            num_classes=num_classes,
            fingerprint=fingerprint(x, y, num_classes, digests),
        )

    @classmethod
    def from_arrays(cls, train: Any, test: Any | None = None, **keys: Any) -> FederatedDataset:
        """Return a dataset of your own examples, divided among clients as `[data]` divides a source's.

        >>> x, y = np.zeros((6, 2)), np.array([0, 0, 0, 1, 1, 1])
        >>> made = FederatedDataset.from_arrays((x, y), clients=3, partition={"name": "shards", "shards": 3})
        >>> len(made.train), len(made.train.client(2)[1])
        (3, 2)

        Args:
            train: (x, y), anything `np.asarray` takes; a partition by labels needs one label an example, a whole
                number or a truth value.
            test: likewise, or None. Clients get test examples in proportion to their training examples of a class.
            keys: clients, partition, mix, holdout, holdout_examples, test_clients and seed, as in a file (see `raysim
                keys data`); `clients` must be given, and `seed` is 0 if it is not.

        Raises:
            DataError: arrays that do not fit each other.
            ExperimentError: a key that `[data]` does not have, or a partition that these examples do not allow.
        """
        return cls.from_clients(**dealt(train, test, keys))

    @classmethod
    def open(cls, path: str | Path) -> FederatedDataset:
        """Map a folder that `DatasetWriter` wrote; this takes milliseconds at any size.

        Args:
            path: the folder, or its URI, such as s3://bucket/digits; this machine's cache copies a URI once.

        Raises:
            DataError: a file is missing, truncated, of another version, or damaged at the URI; names the file.
            RemoteError: nothing answers at the URI.
        """
        if not isinstance(path, str | PathLike):
            raise DataError(f"a dataset is opened by its folder's path or URI, but got {path!r}")
        uri = uri_of(path)
        # `Path.resolve` raises an error for links that go round in a circle.
        folder = Path(os.path.realpath(path)) if uri is None else _copy_of(Remote(uri))
        if folder.is_file():
            hint = f": {OF_TABLES}, and raysim.dataset_of(experiment) opens it" if folder.suffix in TABLES else ""
            raise DataError(f"{path} is a file, and a dataset is the folder that DatasetWriter wrote{hint}")
        manifest = read_manifest(folder)
        opened = {name: ArrowSplit(folder, name, manifest) for name in SPLITS if name in manifest.splits}
        return cls(
            train=opened["train"],
            validation=opened.get("validation"),
            test=opened.get("test"),
            x=manifest.x,
            y=manifest.y,
            num_classes=manifest.num_classes,
            fingerprint=manifest.fingerprint,
        )


def _copy_of(remote: Remote) -> Path:
    if not remote.has(FILE):
        remote.check()
        raise DataError(f"{remote.uri}/{FILE} is missing: there is no prepared dataset in {remote.uri}")
    # The description is read each time: the folder may hold another dataset by now.
    _, manifest = describe(remote)
    return fetch_copy(manifest.fingerprint, manifest.fingerprint, remote)


def _largest_label(name: str, split: ArraySplit) -> int:
    if not split.y.size:
        return 0
    if split.y.min() < 0:
        row = int(np.flatnonzero((split.y < 0).reshape(len(split.y), -1).any(axis=1))[0])
        client = int(np.searchsorted(split.first_rows, row, side="right")) - 1
        raise DataError(
            f"client {split.ids[client]!r} of split {name!r}: an integer label must be at least 0, "
            f"but one is {split.y[row].min()}"
        )
    largest = int(split.y.max())
    targets.check_largest(largest, f"split {name!r}")
    return largest


def _digest(split: ArraySplit) -> SplitDigest:
    digest = SplitDigest()
    digest.rows(split.x, split.y)
    for client_id, size in zip(split.ids, split.sizes().tolist(), strict=True):
        digest.client(client_id, size)
    return digest
