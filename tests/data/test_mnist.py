"""Idx files: the published ones where they are at hand, and every way in which a file can be wrong."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from raysim.data.describe import describe
from raysim.data.prepare import prepare
from raysim.data.section import FashionMnist, Mnist
from raysim.data.sources.mnist import MnistFiles
from raysim.errors import DataError
from tests.support.archives import idx

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def tiny(folder: Path, packed: bool = True) -> Path:
    """Four training and two test images; image i is full of i, its label is i modulo 10."""
    folder.mkdir()
    for stem, count in (("train", 4), ("t10k", 2)):
        images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 28, 28))
        for name, content in (("images-idx3", images), ("labels-idx1", np.arange(count, dtype=np.uint8))):
            data = idx(np.ascontiguousarray(content))
            path = folder / f"{stem}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data, mtime=0) if packed else data)
    return folder


@pytest.mark.parametrize("packed", [True, False])
def test_packed_or_not_the_content_is_the_same(tmp_path: Path, packed: bool) -> None:
    data = prepare(Mnist(clients=4, root=str(tiny(tmp_path / "mnist", packed))), seed=0)
    assert (data.x.shape, data.x.dtype, data.x.scale, data.num_classes) == ((1, 28, 28), "uint8", 1 / 255, 10)
    for name, count in (("train", 4), ("test", 2)):
        split = data.split(name)
        pairs = [split.client(position) for position in range(len(split))]
        x, y = np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])
        assert sorted(y.tolist()) == list(range(count))
        assert (x == y[:, None, None, None]).all()


def test_the_cache_goes_by_content_not_by_path(tmp_path: Path, cache: Path) -> None:
    for folder in ("here", "there"):
        prepare(Mnist(clients=2, root=str(tiny(tmp_path / folder))), seed=0)
    assert len(list((cache / "datasets").iterdir())) == 1


def broken(tmp_path: Path, name: str, content: bytes | None) -> Mnist:
    root = tiny(tmp_path / "mnist")
    (root / f"{name}.gz").unlink()
    if content is not None:
        (root / f"{name}.gz").write_bytes(content)
    return Mnist(clients=2, root=str(root))


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named_with_where_to_get_it(tmp_path: Path, name: str) -> None:
    section = broken(tmp_path, name, None)
    with pytest.raises(DataError, match=rf"{name}\.gz is missing.*published at https://ossci"):
        prepare(section, seed=0)
    with pytest.raises(DataError, match=r"published at http://fashion-mnist"):
        prepare(FashionMnist(clients=2, root=section.root), seed=0)


IMAGES, LABELS = FILES[:2]
FOUR = np.zeros((4, 28, 28), np.uint8)
WRONG = {
    "magic": (IMAGES, gzip.compress(idx(FOUR[0, 0])), "expected the magic number 2051, found 2049"),
    "short header": (IMAGES, gzip.compress(b"\0\0\x08\x03"), "expected a header of 16 bytes, found 4 bytes"),
    "short content": (IMAGES, gzip.compress(idx(FOUR)[:-1]), r"expected 4 x 28 x 28 = 3136 bytes .*, found 3135"),
    "long content": (IMAGES, gzip.compress(idx(FOUR) + b"\0"), "expected .*, found 3137"),
    "truncated gzip": (IMAGES, gzip.compress(idx(FOUR))[:-12], r"expected a whole gzip file, found \d+ bytes"),
    "no gzip": (IMAGES, idx(FOUR), "expected a whole gzip file"),
    "image size": (IMAGES, gzip.compress(idx(FOUR[:, :27])), "expected images of 28 x 28, found 27 x 28"),
    "counts": (
        LABELS,
        gzip.compress(idx(np.zeros(3, np.uint8))),
        "expected 4 labels, .*, found 3",
    ),
    "labels": (LABELS, gzip.compress(idx(np.full(4, 10, np.uint8))), r"expected labels in 0\.\.9, found 10"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_named_with_expected_and_found(tmp_path: Path, case: str) -> None:
    name, content, message = WRONG[case]
    with pytest.raises(DataError, match=rf"{name}\.gz: {message}"):
        prepare(broken(tmp_path, name, content), seed=0)


PUBLISHED = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion-mnist": ([6000] * 10, [1000] * 10),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_files_have_the_published_labels(name: str) -> None:
    root = Path(os.environ.get("RAYSIM_DATA", "")) / name
    if "RAYSIM_DATA" not in os.environ or not root.is_dir():
        pytest.skip(f"RAYSIM_DATA does not name a folder with {name}/")
    section = (Mnist if name == "mnist" else FashionMnist)(clients=100, root=str(root))
    examples = MnistFiles.find(section).load()
    train, test = PUBLISHED[name]
    assert np.bincount(examples.train_y).tolist() == train
    assert np.bincount(examples.test_y).tolist() == test
    data = prepare(section, seed=0)
    assert set(data.train.sizes().tolist()) == {600}
    assert data.split("test").sizes().sum() == 10_000
    assert "clients   100" in describe(data)
    if name == "fashion-mnist":
        pixels = examples.train_x.astype(np.float32) / 255
        assert (round(float(pixels.mean()), 4), round(float(pixels.std()), 4)) == (0.2860, 0.3530)
