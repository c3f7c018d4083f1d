"""A section that names other data than its folder holds is refused, and the error says which these are."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from raysim.data.prepare import prepare
from raysim.data.section import Data
from raysim.data.sources import mnist
from raysim.data.sources.published import Published
from raysim.errors import DataError, MissingFileError

ADAPTER: TypeAdapter[Any] = TypeAdapter(Data)


@pytest.mark.parametrize(
    ("section", "there", "keys", "wanted"),
    [
        ({"name": "cifar100", "clients": 1}, "fed_cifar100_train.h5", "data.name = 'fed_cifar100'", "cifar-100-b"),
        ({"name": "fed_cifar100"}, "cifar-100-python.tar.gz", "data.name = 'cifar100'", "fed_cifar100_train.h5"),
        ({"name": "cifar10", "clients": 1}, "cifar-100-binary.tar.gz", "data.name = 'cifar100'", "cifar-10-binary"),
        ({"name": "emnist"}, "fed_emnist_digitsonly_train.h5", "'emnist' with data.digits = true", "fed_emnist_train"),
        ({"name": "emnist", "digits": True}, "fed_emnist_test.h5", "data.name = 'emnist'", "fed_emnist_digitsonly"),
        ({"name": "emnist", "form": "leaf"}, "emnist_all.sqlite", "data.name = 'emnist'", "no json file"),
        ({"name": "emnist"}, "data/train/all.json", "data.form = 'leaf' of emnist", "fed_emnist_train.h5 is missing"),
        (
            {"name": "emnist_idx", "clients": 1},
            "emnist-letters-train-images-idx3-ubyte.gz",
            "'emnist_idx' with data.split = 'letters'",
            "emnist-balanced-train",
        ),
        ({"name": "shakespeare", "form": "tff"}, "pg100.txt", "'shakespeare' with data.form = 'mcmahan'", "train.h5"),
        ({"name": "gld", "set": "gld160k"}, "mini_gld_test.csv", "with data.set = 'gld23k'", "federated_train.csv"),
        ({"name": "newsgroups", "clients": 1}, "20news-18828.tar.gz", "nothing here, being another ed", "bydate.tar"),
    ],
)
def test_files_of_another_edition_are_named(
    tmp_path: Path, section: dict[str, Any], there: str, keys: str, wanted: str
) -> None:
    file = tmp_path / there
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    with pytest.raises(MissingFileError) as raised:
        prepare(ADAPTER.validate_python({**section, "root": str(tmp_path)}), seed=0)
    said = str(raised.value)
    assert said.startswith(f"{there}, which is there, is read by ")
    assert keys in said
    assert wanted in said


def test_a_part_of_the_sources_own_files_is_no_other_edition(tmp_path: Path) -> None:
    (tmp_path / "fed_cifar100_train.h5").touch()
    with pytest.raises(MissingFileError) as raised:
        prepare(ADAPTER.validate_python({"name": "fed_cifar100", "root": str(tmp_path)}), seed=0)
    assert str(raised.value).startswith(f"{tmp_path}/fed_cifar100_test.h5 is missing")


def test_a_known_file_of_that_name_of_another_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(b"clothes")
    clothes = f"md5:{hashlib.md5(b'clothes').hexdigest()}"
    digits = Published("images", "https://digits", f"md5:{hashlib.md5(b'digits').hexdigest()}")
    assert digits.find(tmp_path).path == tmp_path / "images"  # what nobody knows may be a part: a warning
    strict = replace(digits, not_meant=((clothes, "data.name = 'clothes'"),))
    with pytest.raises(DataError, match=r"images is read by data\.name = 'clothes': set that, or name another folder"):
        strict.find(tmp_path)


def test_mnist_and_fashion_mnist_know_each_others_files() -> None:
    for name, other in (("mnist", "fashion_mnist"), ("fashion_mnist", "mnist")):
        for file in mnist.FILES[name]:
            assert {checksum for checksum, _ in file.not_meant} == {each.checksum for each in mnist.FILES[other]}
            assert {keys for _, keys in file.not_meant} == {f"data.name = {other!r}"}
