"""Describes a dataset, as text or for other programs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from raysim.arrays import Int64s
from raysim.data.dataset import FederatedDataset
from raysim.data.field import Field, label_counts
from raysim.data.split import Split

_SIZED_CLIENTS = 100_000
_READ_CLIENTS = 1_000


class SplitFacts(NamedTuple):
    """clients: of the split. sizes: examples of each of those that were counted. labels: examples of each class, (C,),
    at the clients whose labels were read, of which there are `num_read`; None for a regression. Padding is not a label.
    """

    clients: int
    sizes: Int64s
    labels: Int64s | None
    num_read: int

    def record(self) -> dict[str, Any]:
        """Return what other programs read; `of_clients` says where not all were counted."""
        counted = {"sizes": len(self.sizes), "labels": None if self.labels is None else self.num_read}
        sample = {name: count for name, count in counted.items() if count is not None and count < self.clients}
        return {
            "clients": self.clients,
            "examples": int(self.sizes.sum()),
            "sizes": {
                "min": int(self.sizes.min()),
                "median": float(np.median(self.sizes)),
                "max": int(self.sizes.max()),
            },
            "labels": None if self.labels is None else self.labels.tolist(),
            **({"of_clients": sample} if sample else {}),
        }


def split_facts(split: Split, num_classes: int | None, padding: int | None) -> SplitFacts:
    """Count sizes and labels of a split; the cost is that of `describe`."""
    read, labels = _evenly(len(split), _READ_CLIENTS), None
    if num_classes is not None:
        labels = np.zeros(num_classes, np.int64)
        for position in read.tolist():
            labels += label_counts(split.client(position)[1], num_classes, padding)
    return SplitFacts(len(split), _sizes(split), labels, len(read))


def describe(dataset: FederatedDataset) -> str:
    """Describe fields and fingerprint, and for every split its clients, examples, sizes and labels.

    The cost is bounded: sizes are those of at most 100,000 clients at even distances, labels those of at most 1,000.
    The text states such a sample. Padding is not a label.
    """
    lines = [*_heading(dataset), f"fingerprint  {dataset.fingerprint}"]
    for name, split in dataset.splits.items():
        lines += ["", name, *(f"  {line}" for line in _split(split, dataset.num_classes, dataset.y.padding))]
    return "\n".join(lines)


def summary(dataset: FederatedDataset) -> str:
    """Describe fields, and in a line per split clients, examples and sizes; the cost is that of `describe`."""
    lines = _heading(dataset)
    for name, split in dataset.splits.items():
        sizes = _sizes(split)
        about = _of(len(sizes), len(split))
        of_each = " to ".join(f"{size:,}" for size in sorted({sizes.min(), sizes.max()}))
        lines.append(f"{name:<11}  clients {len(split):,}, examples {sizes.sum():,}, sizes {of_each}{about}")
    return "\n".join(lines)


def median(sizes: Int64s) -> str:
    """Return the median as text; of an even number of sizes it may lie halfway between two.

    >>> median(np.array([1, 2])), median(np.array([1000, 1002, 1004]))
    ('1.5', '1,002')
    """
    value = float(np.median(sizes))
    return f"{value:,.0f}" if value.is_integer() else f"{value:,.1f}"


def _heading(dataset: FederatedDataset) -> list[str]:
    task = "regression" if dataset.num_classes is None else f"classification, {dataset.num_classes} classes"
    return [f"x            {_field(dataset.x)}", f"y            {_field(dataset.y)}", f"task         {task}"]


def _field(field: Field) -> str:
    if (field.scale, field.offset) == (1.0, 0.0):
        return str(field)
    return f"{field}, value = stored * {field.scale:.6g} + {field.offset:.6g}"


def _split(split: Split, num_classes: int | None, padding: int | None) -> list[str]:
    clients, sizes, labels, num_read = split_facts(split, num_classes, padding)
    about = _of(len(sizes), clients)
    lines = [
        f"clients   {clients:,}",
        f"examples  {sizes.sum():,}{about}",
        f"sizes     min {sizes.min():,}, median {median(sizes)}, max {sizes.max():,}{about}",
    ]
    if labels is not None:
        lines += _histogram(labels, _of(num_read, clients))
    return lines


def _sizes(split: Split) -> Int64s:
    """Return examples per client."""
    return split.sizes(_evenly(len(split), _SIZED_CLIENTS))


def _evenly(num_clients: int, at_most: int) -> Int64s:
    """Return up to `at_most` positions at even distances, in order."""
    step_count = min(num_clients, at_most)
    return np.arange(step_count, dtype=np.int64) * num_clients // step_count


def _of(counted: int, clients: int) -> str:
    """Return the sample's size as text if it is a sample."""
    return "" if counted == clients else f" (of {counted:,} clients)"


def _histogram(counts: Int64s, about: str, shown: int = 20) -> list[str]:
    total = max(1, int(counts.sum()))
    order = np.arange(len(counts)) if len(counts) <= shown else np.argsort(-counts, kind="stable")[:shown]
    title = "labels" if len(counts) <= shown else f"labels, the {shown} most frequent of {len(counts):,}"
    width = len(f"{counts.max():,}")
    return [f"{title}{about}"] + [
        f"  {label:>4}  {counts[label]:>{width},}  {100 * counts[label] / total:5.1f} %" for label in order.tolist()
    ]
