"""Every source's published files, as small as they can be, in the folders where they are looked for."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support import language
from tests.support.archives import idx, packed, records
from tests.support.tff_files import image, sqlite

WRITERS = ("f0000_14", "f0001_41", "f0002_07", "f0003_00")
NEWS = ("Oil, up", "Talks go on", "Home side wins", "New chip")
PLAY = """{title}

by William Shakespeare

""" + "".join(
    f"  {role}. To be or not to be,\n    that is the question.\n  {role}. Words, words.\n    And more words.\n"
    for role in ("HAMLET", "OPHELIA", "HORATIO")
)


def _images(count: int, classes: int, first: int = 0) -> tuple[bytes, bytes]:
    labels = np.arange(count) % classes + first
    pixels = np.random.default_rng(0).integers(0, 256, (count, 28, 28))
    return idx(pixels.astype(np.uint8)), idx(labels.astype(np.uint8))


def _idx_files(folder: Path, stems: tuple[str, str], classes: int, first: int = 0) -> None:
    for stem, count in zip(stems, (120, 20), strict=True):
        for kind, content in zip(("images-idx3", "labels-idx1"), _images(count, classes, first), strict=True):
            (folder / f"{stem}-{kind}-ubyte.gz").write_bytes(gzip.compress(content, mtime=0))


def _cifar(count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.random.default_rng(count).integers(0, 256, (count, 3072))


def _cifar10(folder: Path) -> None:
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    packed(folder / "cifar-10-binary.tar.gz", {name: records(np.arange(20) % 10, _cifar(20)) for name in names})


def _cifar100(folder: Path) -> None:
    fine = np.arange(100)
    both = {name: records(fine % 20, fine, _cifar(100)) for name in ("train.bin", "test.bin")}
    packed(folder / "cifar-100-binary.tar.gz", both)


def _fed_cifar100(folder: Path) -> None:
    from tests.support.tff_files import hdf5

    fine = np.arange(4)[:, None]
    images = _cifar(4).reshape(4, 32, 32, 3).astype(np.uint8)
    rows = {"image": images, "label": 20 * fine, "coarse_label": fine}
    for side in ("train", "test"):
        hdf5(folder / f"fed_cifar100_{side}.h5", {str(client): rows for client in range(4)})


def _emnist(folder: Path) -> None:
    examples = [{"pixels": image(7 * label).reshape(-1).tolist(), "label": [label]} for label in range(6)]
    of_all = dict.fromkeys(WRITERS, examples)
    sqlite(folder / "emnist_all.sqlite", {"train": of_all, "test": of_all})


def _shakespeare(folder: Path) -> None:
    from tests.support.tff_files import hdf5

    plays = "".join(PLAY.format(title=title) for title in ("HAMLET", "MACBETH"))
    (folder / "pg100.txt").write_text(f"{plays}*** END OF THIS PROJECT GUTENBERG EBOOK ***\n")
    for side in ("train", "test"):
        snippets = {"snippets": [b"To be or not to be", b"Words, words."]}
        hdf5(folder / f"shakespeare_{side}.h5", {f"PLAY_{role}": snippets for role in WRITERS})


def _stackoverflow(folder: Path) -> None:
    counts = {f"word{number}": 20_000 - number for number in range(10_000)}
    (folder / "stackoverflow.word_count").write_text(json.dumps(counts))
    users = {writer: [{"tokens": b"word1 word2 other word3"}, {"tokens": b"word1"}] for writer in WRITERS}
    sqlite(folder / "stackoverflow.sqlite", dict.fromkeys(("train", "heldout", "test"), users))


def _ag_news(folder: Path) -> None:
    rows = "".join(f'"{1 + n % 4}","{NEWS[n % 4]}","again and {n}"\n' for n in range(40))
    for side in ("train", "test"):
        (folder / f"{side}.csv").write_text(rows)


def _newsgroups(folder: Path) -> None:
    messages = {
        f"20news-bydate-{side}/group.{group:02}/{n}": f"Subject: {group}\n\nwords\n".encode()
        for side in ("train", "test")
        for group in range(20)
        for n in range(2)
    }
    packed(folder / "20news-bydate.tar.gz", messages, folder="")


def _gld(folder: Path) -> None:
    pictures = pytest.importorskip("PIL.Image")
    (folder / "images").mkdir()
    pictures.new("RGB", (40, 30), (255, 0, 0)).save(folder / "images" / "aa.jpg")
    rows = "".join(f"{writer},{label},aa\n" for writer in WRITERS for label in range(3))
    for train, test in (("mini_gld_train_split.csv", "mini_gld_test.csv"), ("federated_train.csv", "test.csv")):
        (folder / train).write_text(f"user_id,class,image_id\n{rows}")
        (folder / test).write_text("class,image_id\n0,aa\n1,aa\n")


def _instructions(folder: Path) -> None:
    language.write_lines(folder / "train.jsonl", [*language.USERS, *WRITERS, "zoe"])


def glove(file: Path, width: int = 300) -> Path:
    """Write vectors of the news' words, as GloVe publishes them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    words = ("the", ",", "oil", "up", "talks", "words", "again", "and")
    lines = [
        f"{word} {' '.join(f'{(place + 1) / (row + 2):.5f}' for place in range(width))}"
        for row, word in enumerate(words)
    ]
    file.write_text("\n".join(lines) + "\n")
    return file


# By source: the usual folder, and what writes its files.
_FOLDERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "mnist": ("mnist", lambda folder: _idx_files(folder, ("train", "t10k"), 10)),
    "fashion_mnist": ("fashion-mnist", lambda folder: _idx_files(folder, ("train", "t10k"), 10)),
    "emnist": ("emnist", _emnist),
    "emnist_idx": (
        "emnist",
        lambda folder: _idx_files(folder, ("emnist-letters-train", "emnist-letters-test"), 26, first=1),
    ),
    "cifar10": ("cifar10", _cifar10),
    "cifar100": ("cifar100", _cifar100),
    "fed_cifar100": ("fed_cifar100", _fed_cifar100),
    "shakespeare": ("shakespeare", _shakespeare),
    "stackoverflow": ("stackoverflow", _stackoverflow),
    "ag_news": ("ag_news_csv", _ag_news),
    "newsgroups": ("20news-bydate", _newsgroups),
    "gld": ("gld", _gld),
    "instructions": ("instructions", _instructions),
}


def write(root: Path, source: str) -> None:
    """Write the source's files below `root`; a source without files, such as digits, has nothing to write."""
    if source in _FOLDERS:
        name, writer = _FOLDERS[source]
        (root / name).mkdir(parents=True)
        writer(root / name)
