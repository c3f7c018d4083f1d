"""Computes how like each training client's labels are to those of all training clients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysim.data.dataset import FederatedDataset
from raysim.data.field import label_counts
from raysim.server import diagnostics


def pooled_labels(dataset: FederatedDataset) -> Tensor:
    """Return the label counts over all training clients, padding left out, (classes,)."""
    assert dataset.num_classes is not None
    counts = np.zeros(dataset.num_classes, dtype=np.int64)
    for position in range(len(dataset.train)):
        counts += label_counts(dataset.train.client(position)[1], len(counts), dataset.y.padding)
    return torch.from_numpy(counts)


class LabelSimilarity:
    """Cosines of clients' label counts with the pooled ones, each computed once."""

    def __init__(self, dataset: FederatedDataset) -> None:
        self._dataset = dataset
        self._pooled: Tensor | None = None
        self._found: dict[int, float | None] = {}

    def of(self, position: int) -> float | None:
        """Return that of the training client at this position; None if the targets are real numbers."""
        if self._dataset.num_classes is None:
            return None
        if self._pooled is None:
            self._pooled = pooled_labels(self._dataset)
        if position not in self._found:
            y = self._dataset.train.client(position)[1]
            counts = torch.from_numpy(label_counts(y, len(self._pooled), self._dataset.y.padding))
            self._found[position] = diagnostics.label_similarity(counts, self._pooled) if counts.any() else None
        return self._found[position]
