"""CIFAR-100 by TensorFlow Federated's clients: the same ones from two kinds of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.section import FedCifar100
from raysim.data.sources.cifar import central_crop, standardised
from raysim.errors import DataError, MissingFileError
from tests.support.tff_files import hdf5, sqlite

DRAW = np.random.default_rng(0)
# Split -> client -> images with channels last, and their fine labels; the coarse one of f is f % 20.
CLIENTS = {
    split: {client: (DRAW.integers(0, 256, (len(fine), 32, 32, 3)).astype(np.uint8), fine) for client, fine in of}
    for split, of in (("train", (("0", [99, 3]), ("10", [5]), ("2", [40, 7]))), ("test", (("0", [8]), ("2", [99, 1]))))
}


def columns(images: Any, fine: list[int]) -> dict[str, Any]:
    labels = np.array(fine)
    return {"image": images, "label": labels[:, None], "coarse_label": labels[:, None] % 20}


def as_hdf5(folder: Path) -> None:
    for split, clients in CLIENTS.items():
        hdf5(folder / f"fed_cifar100_{split}.h5", {name: columns(*rows) for name, rows in clients.items()})


def as_sqlite(folder: Path) -> None:
    def examples(images: Any, fine: list[int]) -> list[dict[str, Any]]:
        return [
            {"image": image.reshape(-1).tolist(), "label": [label], "coarse_label": [label % 20]}
            for image, label in zip(images, fine, strict=True)
        ]

    of_all = {split: {name: examples(*rows) for name, rows in clients.items()} for split, clients in CLIENTS.items()}
    sqlite(folder / "cifar100.sqlite", of_all)


FORMS: dict[str, Callable[[Path], None]] = {"hdf5": as_hdf5, "sqlite": as_sqlite}


def cifar(folder: Path, **keys: Any) -> FederatedDataset:
    return prepare(FedCifar100.model_validate({"root": str(folder), **keys}), seed=0)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_clients(tmp_path: Path, form: str) -> None:
    FORMS[form](tmp_path)
    data = cifar(tmp_path)
    assert (data.x.shape, data.x.dtype, data.x.scale, data.num_classes) == ((3, 32, 32), "uint8", 1 / 255, 100)
    for split, clients in CLIENTS.items():
        found = data.split(split)
        assert len(found) == len(clients)
        for client, (images, fine) in clients.items():
            x, y = found.client(found.position_of(client if split == "train" else f"test-{client}"))
            assert y.tolist() == fine
            np.testing.assert_array_equal(x, images.transpose(0, 3, 1, 2))


def test_images_are_cropped_and_standardised_as_those_of_cifar100(tmp_path: Path) -> None:
    as_hdf5(tmp_path)
    data = cifar(tmp_path, crop=24, standardise=True)
    images, _ = CLIENTS["train"]["2"]
    x, _ = data.train.client(data.train.position_of("2"))
    np.testing.assert_array_equal(x, standardised(central_crop(images.transpose(0, 3, 1, 2), 24)))


@pytest.mark.parametrize("form", FORMS)
def test_labels_can_be_the_coarse_ones(tmp_path: Path, form: str) -> None:
    FORMS[form](tmp_path)
    data = cifar(tmp_path, labels="coarse")
    assert data.num_classes == 20
    assert data.train.client(0)[1].tolist() == [19, 3]


def test_a_test_client_is_not_the_training_client_of_its_number(tmp_path: Path) -> None:
    as_hdf5(tmp_path)
    # Clients 0 and 2 are left out of training; the test clients of these numbers are others, and stay.
    few = cifar(tmp_path, clients=1)
    assert (few.train.id_of(0), len(few.split("test"))) == ("10", 2)


def test_what_is_missing_is_named_with_its_address(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"fed_cifar100_train\.h5 is missing.*fed_cifar100\.tar\.bz2 \(unpack"):
        cifar(tmp_path)
    with pytest.raises(MissingFileError, match=r"put fed_cifar100_train\.h5 and fed_cifar100_test\.h5 there"):
        cifar(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": np.zeros((1, 28, 28, 1), np.uint8)}, "expected images of 32 x 32 x 3, found 1 of 28 x 28 x 1"),
        ({"label": np.array([[100]])}, r"expected labels in 0\.\.99, found 100 to 100"),
        ({"image": np.full((1, 32, 32, 3), 256)}, r"expected pixels in 0\.\.255, found 256"),
        ({"image": np.full((1, 32, 32, 3), 0.5)}, r"expected whole numbers as pixels, found 0\.5"),
        ({"image": np.zeros((1, 3, 32, 32))}, "expected images of 32 x 32 x 3, found 1 of 3 x 32 x 32"),
        ({"label": np.array([[4.5]])}, r"expected whole numbers as labels, found 4\.5"),
    ],
)
def test_rows_of_another_edition_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    good = columns(np.zeros((1, 32, 32, 3), np.uint8), [4])
    hdf5(tmp_path / "fed_cifar100_train.h5", {"7": {**good, **change}})
    hdf5(tmp_path / "fed_cifar100_test.h5", {"0": good})
    with pytest.raises(DataError, match=f"fed_cifar100_train.h5, client '7': {said}"):
        cifar(tmp_path)
