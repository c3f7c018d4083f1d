"""The picture of labels by client: what it counts, and what it leaves out where there is too much to show."""

from __future__ import annotations

import numpy as np
import pytest

from raysim.data import FederatedDataset
from raysim.errors import DataError
from raysim.report.label_picture import SHOWN_CLIENTS, SHOWN_LABELS, shown_labels


def test_a_column_is_a_client_and_a_row_a_label() -> None:
    clients = {"a": (np.zeros((3, 1)), [0, 2, 2]), "b": (np.zeros((1, 1)), [1])}
    counts, ids, labels, _ = shown_labels(FederatedDataset.from_clients(clients), "train")
    assert counts.tolist() == [[1, 0], [0, 1], [2, 0]]
    assert (ids, labels.tolist()) == (["a", "b"], [0, 1, 2])


def test_of_many_clients_and_labels_some_are_shown() -> None:
    # Client k has label k, and all have label 0.
    clients = {str(k): (np.zeros((2, 1)), [0, k]) for k in range(2 * SHOWN_CLIENTS)}
    counts, ids, labels, _ = shown_labels(FederatedDataset.from_clients(clients), "train")
    assert ids == [str(k) for k in range(0, 2 * SHOWN_CLIENTS, 2)]
    assert counts.shape == (SHOWN_LABELS, SHOWN_CLIENTS)
    assert labels[0] == 0
    assert counts[0].tolist() == [2] + [1] * (SHOWN_CLIENTS - 1)


def test_a_share_is_of_all_of_a_clients_labels_though_not_all_are_shown() -> None:
    # The last client has three labels that are not shown, and one that is.
    clients = {str(k): (np.zeros((4, 1)), [k, k, k, k]) for k in range(SHOWN_LABELS)}
    clients["last"] = (np.zeros((4, 1)), [0, *range(SHOWN_LABELS, SHOWN_LABELS + 3)])
    shown = shown_labels(FederatedDataset.from_clients(clients), "train")
    assert shown.labels.tolist() == list(range(SHOWN_LABELS))
    assert shown.of_clients.tolist() == [4] * (SHOWN_LABELS + 1)
    assert shown.shares[:, -1].tolist() == [0.25] + [0.0] * (SHOWN_LABELS - 1)


def test_real_targets_have_no_labels() -> None:
    with pytest.raises(DataError, match="needs whole-number labels"):
        shown_labels(FederatedDataset.from_clients({"a": (np.zeros((1, 1)), [0.5])}), "train")
