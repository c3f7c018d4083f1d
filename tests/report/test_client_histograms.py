"""Histograms of clients: what they count, and where their bars end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from raysim.data import FederatedDataset
from raysim.errors import DiskError
from raysim.report import client_histograms, label_picture
from raysim.report.client_histograms import BINS, counted, draw, edges


def dataset() -> FederatedDataset:
    """Two training clients with three examples of two labels, and one of one; label 3 is in the test split only."""
    train = {"a": (np.zeros((3, 1)), [0, 2, 2]), "b": (np.zeros((1, 1)), [2])}
    test = {"t": (np.zeros((2, 1)), [0, 3])}
    return FederatedDataset.from_clients(train, test=test)


def test_examples_and_labels_are_counted_by_client_and_by_label() -> None:
    found = {(one.of, one.what): one.numbers.tolist() for one in counted(dataset(), "train")}
    assert found == {
        ("train clients", "examples of a client"): [3, 1],
        ("train clients", "labels of a client"): [2, 1],
        # Labels that no client has are not counted.
        ("labels", "examples of a label, train clients"): [1, 3],
        ("labels", "examples of a label, test clients"): [1, 1],
    }
    assert [one.of for one in counted(dataset(), "test")] == ["test clients", "test clients", "labels"]


def test_real_targets_have_sizes_only() -> None:
    found = counted(FederatedDataset.from_clients({"a": (np.zeros((2, 1)), [0.5, 1.5])}), "train")
    assert [(one.what, one.numbers.tolist()) for one in found] == [("examples of a client", [2])]


def test_of_many_clients_some_are_read_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_histograms, "READ_CLIENTS", 2)
    clients = {str(k): (np.zeros((k + 1, 1)), [0] * (k + 1)) for k in range(4)}
    first, *_, of_test = counted(FederatedDataset.from_clients(clients, test=clients), "train")
    assert first.of == "2 of 4 train clients"
    assert first.numbers.tolist() == [1, 3]
    assert (of_test.what, of_test.numbers.tolist()) == ("examples of a label, 2 of 4 test clients", [4])


@pytest.mark.parametrize("numbers", [[5], [1, 40], [1, 31], [7, 90, 100], [1, 100_000], [3, 350]])
def test_no_bar_splits_a_whole_number_and_every_number_has_one(numbers: list[int]) -> None:
    bounds = edges(np.array(numbers))
    assert len(bounds) - 1 <= BINS
    assert all(bound % 1 == 0.5 for bound in bounds)
    assert bounds == sorted(set(bounds))
    assert bounds[0] < min(numbers)
    assert bounds[-1] > max(numbers)


def test_the_picture_has_a_panel_for_each(tmp_path: Path) -> None:
    draw(dataset(), "train", tmp_path / "made" / "clients.png")
    assert (tmp_path / "made" / "clients.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("of", [client_histograms.draw, label_picture.draw])
def test_a_folder_that_cannot_be_made_is_named(
    of: Callable[[FederatedDataset, str, Path], None], tmp_path: Path
) -> None:
    (tmp_path / "made").touch()
    with pytest.raises(DiskError, match="made could not be written: File exists"):
        of(dataset(), "train", tmp_path / "made" / "clients.png")
