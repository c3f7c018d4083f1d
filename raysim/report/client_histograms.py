"""Draws histograms of a dataset's clients: their examples, their labels, and the examples of every label.

Source: Wang et al. (2021), figure 10, which has the last of a test split beside the others.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raysim.arrays import Int64s
from raysim.data.dataset import FederatedDataset
from raysim.data.field import label_counts
from raysim.data.split import Split
from raysim.report.looks import SERIES, plain
from raysim.storage import disk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

READ_CLIENTS = 10_000
"""Of a larger split, this number of clients at even distances is counted."""
BINS = 30
LOGARITHMIC_ABOVE = 100.0


class Counted(NamedTuple):
    """`of` things each have a number of `what`: numbers, (things,), at least one of them above 0."""

    of: str
    what: str
    numbers: Int64s


class _Read(NamedTuple):
    """Of each client, (clients,), its examples and different labels; of each label, (labels,), its examples."""

    sizes: Int64s
    different: Int64s
    of_labels: Int64s


def counted(dataset: FederatedDataset, split: str) -> list[Counted]:
    """Return the examples and labels of the split's clients, and the examples of its labels; then those of a test.

    Padding is not a label. Where targets are real numbers there are only examples. Clients and labels without any are
    left out.
    """
    part = dataset.split(split)
    sizes, different, of_labels = _read(dataset, part)
    who = _who(split, part)
    histograms = [Counted(who, "examples of a client", sizes)]
    if dataset.num_classes is not None:
        histograms += [
            Counted(who, "labels of a client", different),
            Counted("labels", f"examples of a label, {who}", of_labels),
        ]
        if split != "test" and "test" in dataset.splits:
            test = dataset.split("test")
            of_test = _read(dataset, test).of_labels
            histograms.append(Counted("labels", f"examples of a label, {_who('test', test)}", of_test))
    return [one._replace(numbers=one.numbers[one.numbers > 0]) for one in histograms]


def _who(split: str, part: Split) -> str:
    """Return whose examples `_read` counts."""
    read = min(len(part), READ_CLIENTS)
    return f"{split} clients" if read == len(part) else f"{read:,} of {len(part):,} {split} clients"


def _read(dataset: FederatedDataset, part: Split) -> _Read:
    count = min(len(part), READ_CLIENTS)
    positions = np.arange(count, dtype=np.int64) * len(part) // count
    sizes, different = part.sizes(positions), np.zeros(count, np.int64)
    of_labels = np.zeros(dataset.num_classes or 0, np.int64)
    for i, position in enumerate(positions.tolist() if dataset.num_classes else ()):
        labels = label_counts(part.client(position)[1], len(of_labels), dataset.y.padding)
        different[i] = np.count_nonzero(labels)
        of_labels += labels
    return _Read(sizes, different, of_labels)


def edges(numbers: Int64s) -> list[float]:
    """Return the bounds of at most BINS bars of positive numbers, half way between whole numbers.

    Bars are of one width; if the numbers span a large factor, their ends have about one ratio.

    >>> edges(np.array([3, 5]))
    [2.5, 3.5, 4.5, 5.5]
    """
    low, high = int(numbers.min()), int(numbers.max())
    if high / low > LOGARITHMIC_ABOVE:
        return [bound - 0.5 for bound in np.unique(np.floor(np.geomspace(low, high + 1, BINS + 1))).tolist()]
    width = -(-(high + 1 - low) // BINS)
    return [low - 0.5 + width * i for i in range(-(-(high + 1 - low) // width) + 1)]


def draw(dataset: FederatedDataset, split: str, path: Path) -> None:
    """Write the histograms of a split as a picture."""
    from matplotlib.figure import Figure  # slow to import

    histograms = [one for one in counted(dataset, split) if len(one.numbers)]
    across = min(2, len(histograms))
    figure = Figure(figsize=(4.5 * across, 3.0 * -(-len(histograms) // across)), dpi=150, layout="constrained")
    every = figure.subplots(-(-len(histograms) // across), across, squeeze=False).ravel()
    for axes, one in zip(every, histograms, strict=False):
        _bars(axes, one)
    for axes in every[len(histograms) :]:
        axes.set_visible(False)
    disk.make_folder(path.parent)
    with disk.writing(path):
        figure.savefig(path)


def _bars(axes: Axes, one: Counted) -> None:
    from matplotlib.ticker import MaxNLocator

    bounds = edges(one.numbers)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.hist(one.numbers, bins=bounds, color=SERIES[0])
    if one.numbers.max() / one.numbers.min() > LOGARITHMIC_ABOVE:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    plain(axes)
    axes.set_xlabel(one.what)
    axes.set_ylabel(one.of)
