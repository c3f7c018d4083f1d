"""The picture of labels by client: what it counts, and what it leaves out where there is too much to show."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.data import FederatedDataset
from raysim.errors import DataError
from raysim.report.label_picture import SHOWN_CLIENTS, SHOWN_LABELS, shown_counts


def test_a_column_is_a_client_and_a_row_a_label() -> None:
    clients = {"a": (np.zeros((3, 1)), [0, 2, 2]), "b": (np.zeros((1, 1)), [1])}
    counts, ids, labels = shown_counts(FederatedDataset.from_clients(clients), "train")
    assert counts.tolist() == [[1, 0], [0, 1], [2, 0]]
    assert (ids, labels.tolist()) == (["a", "b"], [0, 1, 2])


def test_of_many_clients_and_labels_some_are_shown() -> None:
    # Client k has label k, and all have label 0.
    clients = {str(k): (np.zeros((2, 1)), [0, k]) for k in range(2 * SHOWN_CLIENTS)}
    counts, ids, labels = shown_counts(FederatedDataset.from_clients(clients), "train")
    assert ids == [str(k) for k in range(0, 2 * SHOWN_CLIENTS, 2)]
    assert counts.shape == (SHOWN_LABELS, SHOWN_CLIENTS)
    assert labels[0] == 0
    assert counts[0].tolist() == [2] + [1] * (SHOWN_CLIENTS - 1)


def test_real_targets_have_no_labels() -> None:
    with pytest.raises(DataError, match="needs whole-number labels"):
        shown_counts(FederatedDataset.from_clients({"a": (np.zeros((1, 1)), [0.5])}), "train")
