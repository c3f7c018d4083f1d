"""Published files that were cut off or damaged on the way are named, whatever their format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from raysim.data.prepare import prepare
from raysim.data.section import Data
from raysim.errors import DataError
from tests.support import tiny

ADAPTER: TypeAdapter[Any] = TypeAdapter(Data)

# Source, other keys of the section, and the file.
ARCHIVES: list[tuple[str, dict[str, Any], str]] = [
    ("cifar10", {"clients": 2}, "cifar10/cifar-10-binary.tar.gz"),
    ("cifar100", {"clients": 2}, "cifar100/cifar-100-binary.tar.gz"),
    ("newsgroups", {"clients": 2}, "20news-bydate/20news-bydate.tar.gz"),
    ("mnist", {"clients": 2}, "mnist/train-images-idx3-ubyte.gz"),
    ("emnist_idx", {"clients": 2, "split": "letters"}, "emnist/emnist-letters-train-images-idx3-ubyte.gz"),
]
OTHERS: list[tuple[str, dict[str, Any], str]] = [
    ("emnist", {}, "emnist/emnist_all.sqlite"),
    ("fed_cifar100", {}, "fed_cifar100/fed_cifar100_train.h5"),
    ("stackoverflow", {}, "stackoverflow/stackoverflow.sqlite"),
    ("stackoverflow", {}, "stackoverflow/stackoverflow.word_count"),
    ("shakespeare", {}, "shakespeare/pg100.txt"),
    ("shakespeare", {"form": "tff"}, "shakespeare/shakespeare_train.h5"),
    ("ag_news", {"clients": 2}, "ag_news_csv/train.csv"),
    ("gld", {}, "gld/mini_gld_train_split.csv"),
    ("gld", {}, "gld/images/aa.jpg"),
]


def refused(
    root: Path, source: str, keys: dict[str, Any], file: str, change: Callable[[bytearray], bytes | bytearray]
) -> str:
    """The message when the file's content is changed."""
    tiny.write(root, source)
    path = root / file
    path.write_bytes(change(bytearray(path.read_bytes())))
    section = ADAPTER.validate_python({"name": source, "root": str(path.parent).removesuffix("/images"), **keys})
    with pytest.raises(DataError) as raised:
        prepare(section, seed=0)
    return str(raised.value)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(("source", "keys", "file"), [*ARCHIVES, *OTHERS])
def test_a_file_that_was_cut_off_is_named(
    tmp_path: Path, source: str, keys: dict[str, Any], file: str, share: float
) -> None:
    said = refused(tmp_path, source, keys, file, lambda content: content[: int(share * len(content))])
    assert Path(file).name in said
    assert "expected" in said


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
@pytest.mark.parametrize(("source", "keys", "file"), ARCHIVES)
def test_an_archive_with_other_bytes_in_it_is_named(
    tmp_path: Path, source: str, keys: dict[str, Any], file: str, share: float
) -> None:
    def other(content: bytearray) -> bytearray:
        begin = int(share * len(content))
        content[begin : begin + 40] = bytes(byte ^ 0x5A for byte in content[begin : begin + 40])
        return content

    said = refused(tmp_path, source, keys, file, other)
    assert f"{Path(file).name}: expected a whole" in said
