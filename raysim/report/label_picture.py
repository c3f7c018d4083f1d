"""Draws the labels of a dataset's clients: a column per client, a row per label, darker for more examples."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from raysim.arrays import Float64s, Int64s
from raysim.data.dataset import FederatedDataset
from raysim.data.field import label_counts
from raysim.errors import DataError
from raysim.report.looks import SERIES
from raysim.storage import disk

SHOWN_CLIENTS = 200
SHOWN_LABELS = 100
"""With more, columns or rows would be thinner than a pixel; then clients at even distances or frequent labels show."""


class ShownLabels(NamedTuple):
    """Of the shown clients and labels: counts, (labels, clients); the clients' ids; the rows' labels, (labels,); and
    how many labels each client has in all, (clients,), those included that are not shown. Padding is not a label."""

    counts: Int64s
    clients: list[str]
    labels: Int64s
    of_clients: Int64s

    @property
    def shares(self) -> Float64s:
        """The share that each label has of all of the client's, (labels, clients)."""
        return self.counts / np.maximum(self.of_clients, 1)


def shown_labels(dataset: FederatedDataset, split: str) -> ShownLabels:
    """Return what the picture of a split shows.

    Raises:
        DataError: real-valued targets.
    """
    if dataset.num_classes is None:
        raise DataError("a picture of labels needs whole-number labels, but the targets of these data are real numbers")
    part = dataset.split(split)
    shown = min(len(part), SHOWN_CLIENTS)
    positions = (np.arange(shown) * len(part) // shown).tolist()
    counts = np.stack(
        [label_counts(part.client(position)[1], dataset.num_classes, dataset.y.padding) for position in positions],
        axis=1,
    )
    ids, labels = [part.id_of(position) for position in positions], np.arange(dataset.num_classes)
    if len(labels) > SHOWN_LABELS:
        labels = np.sort(np.argsort(-counts.sum(1), kind="stable")[:SHOWN_LABELS])
    return ShownLabels(counts[labels], ids, labels, counts.sum(0))


def draw(dataset: FederatedDataset, split: str, path: Path) -> None:
    """Write the picture of each client's label shares, with the clients' numbers of labels above."""
    from matplotlib.figure import Figure  # slow to import

    shown = shown_labels(dataset, split)
    labels, number = shown.labels, len(shown.clients)
    figure = Figure(figsize=(9, 6), dpi=150, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 4))
    above.bar(np.arange(number), shown.of_clients, width=1.0, color=SERIES[0])
    above.set_ylabel("labels")
    image = below.imshow(shown.shares, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(image, ax=below, label="share of the client's labels")
    below.set_ylabel("label" if len(labels) == dataset.num_classes else f"the {len(labels)} most frequent labels")
    below.set_xlabel(f"{number} of {len(dataset.split(split)):,} clients of {split}")
    if len(labels) <= 20:
        below.set_yticks(np.arange(len(labels)), labels.tolist())
    disk.make_folder(path.parent)
    with disk.writing(path):
        figure.savefig(path)
