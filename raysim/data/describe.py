"""Describes a dataset as text."""

from __future__ import annotations

import numpy as np

from raysim.arrays import Int64s
from raysim.data.dataset import FederatedDataset
from raysim.data.field import Field, label_counts
from raysim.data.split import Split

_SIZED_CLIENTS = 100_000
_READ_CLIENTS = 1_000


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
        sizes, about = _sizes(split)
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
    read = _evenly(len(split), _READ_CLIENTS)
    sizes, about = _sizes(split)
    lines = [
        f"clients   {len(split):,}",
        f"examples  {sizes.sum():,}{about}",
        f"sizes     min {sizes.min():,}, median {median(sizes)}, max {sizes.max():,}{about}",
    ]
    if num_classes is not None:
        counts = np.zeros(num_classes, np.int64)
        for position in read.tolist():
            counts += label_counts(split.client(position)[1], num_classes, padding)
        lines += _histogram(counts, _of(read, split))
    return lines


def _sizes(split: Split) -> tuple[Int64s, str]:
    """Return examples per client, and the sample's size as text if it is a sample."""
    sized = _evenly(len(split), _SIZED_CLIENTS)
    return split.sizes(sized), _of(sized, split)


def _evenly(num_clients: int, at_most: int) -> Int64s:
    """Return up to `at_most` positions at even distances, in order."""
    step_count = min(num_clients, at_most)
    return np.arange(step_count, dtype=np.int64) * num_clients // step_count


def _of(positions: Int64s, split: Split) -> str:
    return "" if len(positions) == len(split) else f" (of {len(positions):,} clients)"


def _histogram(counts: Int64s, about: str, shown: int = 20) -> list[str]:
    total = max(1, int(counts.sum()))
    order = np.arange(len(counts)) if len(counts) <= shown else np.argsort(-counts, kind="stable")[:shown]
    title = "labels" if len(counts) <= shown else f"labels, the {shown} most frequent of {len(counts):,}"
    width = len(f"{counts.max():,}")
    return [f"{title}{about}"] + [
        f"  {label:>4}  {counts[label]:>{width},}  {100 * counts[label] / total:5.1f} %" for label in order.tolist()
    ]
