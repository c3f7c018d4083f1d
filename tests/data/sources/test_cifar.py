"""CIFAR: three ways in which the same images lie on disk, and what is done to them before they are stored."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.section import Cifar10, Cifar100
from raysim.data.sources import array_pickle, cifar
from raysim.data.sources.cifar import central_crop, standardised
from raysim.errors import DataError, ExperimentError
from tests.support.archives import packed, records

PER_FILE = 4
TEN = np.random.default_rng(0).integers(0, 256, (6 * PER_FILE, 3072)).astype(np.uint8)
LABELS = np.arange(6 * PER_FILE) % 10
# Fine label f is below coarse label f % 20; each fine label twice.
HUNDRED = np.random.default_rng(1).integers(0, 256, (200, 3072)).astype(np.uint8)
FINE = np.tile(np.arange(100), 2)
COARSE = FINE % 20


NAMES = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
SLICES = {name: slice(PER_FILE * number, PER_FILE * (number + 1)) for number, name in enumerate(NAMES)}
BINARY = {f"{name}.bin": records(LABELS[rows], TEN[rows]) for name, rows in SLICES.items()}


def python2(batch: dict[bytes, object]) -> bytes:
    return pickle.dumps(batch, protocol=2)


PYTHON = {
    name: python2({b"batch_label": b"x", b"labels": LABELS[rows].tolist(), b"data": TEN[rows]})
    for name, rows in SLICES.items()
}


def unpacked(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, content in BINARY.items():
        (folder / name).write_bytes(content)
    return folder


FORMS: dict[str, Callable[[Path], object]] = {
    "binary": lambda folder: packed(folder / "cifar-10-binary.tar.gz", BINARY),
    "unpacked": unpacked,
    "python": lambda folder: packed(folder / "cifar-10-python.tar.gz", PYTHON),
}


def ten(folder: Path, **keys: object) -> FederatedDataset:
    return prepare(Cifar10.model_validate({"clients": 1, "root": str(folder), **keys}), seed=0)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_holds_the_same_images(tmp_path: Path, form: str) -> None:
    FORMS[form](tmp_path / "cifar")
    data = ten(tmp_path / "cifar")
    x, y = data.train.client(0)
    assert (data.x.shape, data.x.scale, data.num_classes) == ((3, 32, 32), 1 / 255, 10)
    np.testing.assert_array_equal(x.reshape(-1, 3072), TEN[: 5 * PER_FILE])
    np.testing.assert_array_equal(y, LABELS[: 5 * PER_FILE])
    np.testing.assert_array_equal(data.split("test").client(0)[0].reshape(-1, 3072), TEN[5 * PER_FILE :])


def test_files_of_ones_own_are_read_though_an_archive_is_there(tmp_path: Path) -> None:
    FORMS["binary"](tmp_path / "cifar")
    names = {"train_files": ["data_batch_1.bin"], "test_files": ["test_batch.bin"]}
    with pytest.raises(DataError, match=r"cifar must hold data_batch_1\.bin, test_batch\.bin, which data\.train_files"):
        ten(tmp_path / "cifar", **names)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (tmp_path / "cifar" / name).write_bytes(BINARY[name])
    np.testing.assert_array_equal(ten(tmp_path / "cifar", **names).train.client(0)[1], LABELS[:PER_FILE])


def test_files_of_ones_own_may_have_one_name_in_several_folders(tmp_path: Path) -> None:
    names = ["one/images.bin", "other/images.bin", "images.bin"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(BINARY[f"data_batch_{number + 1}.bin"])
    data = ten(tmp_path, train_files=names[:2], test_files=names[2:])
    np.testing.assert_array_equal(data.train.client(0)[1], LABELS[: 2 * PER_FILE])
    np.testing.assert_array_equal(data.split("test").client(0)[1], LABELS[2 * PER_FILE : 3 * PER_FILE])
    for files, problem in ((["images.bin"] * 2, "must name each file once"), ([], "at least 1")):
        with pytest.raises(ValidationError, match=problem):
            ten(tmp_path, train_files=files, test_files=["images.bin"])


@pytest.mark.parametrize("form", ["binary", "python"])
def test_an_archive_has_each_batch_in_one_folder(form: str, tmp_path: Path) -> None:
    batches = BINARY if form == "binary" else PYTHON
    both = {f"{folder}/{name}": content for folder in ("one", "other") for name, content in batches.items()}
    packed(tmp_path / f"cifar-10-{form}.tar.gz", both)
    with pytest.raises(DataError, match=r"tar\.gz: expected one data_batch_1.*, found one in several folders"):
        ten(tmp_path)


def test_red_comes_before_green_row_by_row(tmp_path: Path) -> None:
    FORMS["binary"](tmp_path / "cifar")
    x, _ = ten(tmp_path / "cifar").train.client(0)
    assert x[0, 0, 0, 1] == TEN[0, 1]
    assert x[0, 0, 1, 0] == TEN[0, 32]
    assert x[0, 1, 0, 0] == TEN[0, 1024]


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:200])


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    half(packed(tmp_path / "a" / "cifar-10-binary.tar.gz", BINARY))
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: expected a whole tar\.gz archive"):
        ten(tmp_path / "a")
    packed(tmp_path / "b" / "cifar-10-binary.tar.gz", {k: v for k, v in BINARY.items() if k != "test_batch.bin"})
    with pytest.raises(DataError, match=r"expected the members test_batch\.bin, found data_batch_1\.bin"):
        ten(tmp_path / "b")
    packed(tmp_path / "c" / "cifar-10-binary.tar.gz", BINARY | {"data_batch_2.bin": b"0" * 3072})
    with pytest.raises(DataError, match=r"data_batch_2\.bin: expected records of 3073 bytes, found 3072 bytes"):
        ten(tmp_path / "c")
    packed(tmp_path / "d" / "cifar-10-binary.tar.gz", BINARY | {"test_batch.bin": records(LABELS[:1] + 10, TEN[:1])})
    with pytest.raises(DataError, match=r"expected labels in 0\.\.9, found 10"):
        ten(tmp_path / "d")
    (tmp_path / "e").mkdir()
    with pytest.raises(
        DataError, match=r"must hold cifar-10-binary\.tar\.gz.*published at https://www\.cs\.toronto\.edu"
    ):
        ten(tmp_path / "e")
    odd_labels: list[object] = [7, b"labels", [[0]], [None], [2**40], [-1], {}]
    for odd in odd_labels:
        other = PYTHON | {"data_batch_1": python2({b"labels": odd, b"data": TEN[:1]})}
        packed(tmp_path / "g" / "cifar-10-python.tar.gz", other)
        with pytest.raises(DataError, match=r"data_batch_1: expected lists of labels in 0\.\.255"):
            ten(tmp_path / "g")
    text = PYTHON | {"data_batch_1": python2({b"labels": [0], b"data": b"x"})}
    packed(tmp_path / "h" / "cifar-10-python.tar.gz", text)
    with pytest.raises(DataError, match=r"data_batch_1: expected uint8 data of .*, found bytes"):
        ten(tmp_path / "h")
    small = PYTHON | {"data_batch_1": python2({b"labels": [0], b"data": TEN[:1, :300]})}
    packed(tmp_path / "f" / "cifar-10-python.tar.gz", small)
    with pytest.raises(DataError, match=r"data_batch_1: expected uint8 data of .*, found uint8 \(1, 300\)"):
        ten(tmp_path / "f")


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo harm",)


def test_a_pickle_that_asks_for_more_than_arrays_is_not_carried_out(tmp_path: Path) -> None:
    packed(tmp_path / "cifar-10-python.tar.gz", PYTHON | {"data_batch_1": python2({b"data": Harm()})})
    with pytest.raises(DataError, match=r"data_batch_1: expected a pickle of plain values.*: it asks for "):
        ten(tmp_path)
    with pytest.raises(DataError, match="expected a pickle of plain values and arrays only"):
        array_pickle.loads(b"\x80\x02", "here")


def test_arrays_of_both_numpys_are_read() -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    new = pickle.dumps(array, protocol=2)
    for content in (new, new.replace(b"numpy._core.", b"numpy.core.")):
        np.testing.assert_array_equal(array_pickle.loads(content, "here"), array)


def test_values_and_arrays_are_those_of_pythons_reader() -> None:
    columns = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    arrays = [columns, columns, np.zeros((0, 4), np.uint8)]
    batch = {
        b"labels": [0, 255, 256, 65_535, 65_536, -1, 2**40, -(2**40), True, None],
        "text": ["é" * 300, b"\xff" * 300, b"", ""],
        b"twice": arrays,
        3: [[], {}, {b"a": 1}],
    }
    for protocol in (2, 3):
        found = array_pickle.loads(pickle.dumps(batch, protocol), "here")
        assert list(found) == list(batch)
        for key in (b"labels", "text", 3):
            assert found[key] == batch[key]
        for array, expected in zip(found[b"twice"], arrays, strict=True):
            np.testing.assert_array_equal(array, expected)


# What was a segmentation fault: an array whose memory is an integer of the file's. NumPy's state would have to be
# (1, shape, dtype, order, bytes), and its dtype's (3, "|", None, None, None, -1, -1, 0).
ARRAY = pickle.dumps(np.arange(6, dtype=np.uint8), protocol=2)
HOSTILE = {
    "objects": ARRAY.replace(b"X\x02\x00\x00\x00u1", b"X\x02\x00\x00\x00O8"),
    "wide": ARRAY.replace(b"X\x02\x00\x00\x00u1", b"X\x02\x00\x00\x00V9"),
    "size of the dtype": ARRAY.replace(b"NNN", b"NN)"),
    "shape": ARRAY.replace(b"K\x06\x85", b"K\x60\x85"),
    "negative": ARRAY.replace(b"K\x06\x85", b"J\xfa\xff\xff\xff\x85"),
    "state of a class": b"\x80\x02cnumpy\nndarray\n}b.",
    "state of a list": b"\x80\x02]}b.",
    "function": b"\x80\x02c_codecs\nencode\n.",
    "call": b"\x80\x02cnumpy\nndarray\nK\x08\x85R.",
    "itself": b"\x80\x02]q\x00h\x00a.",
    "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "laughs": b"\x80\x02" + b"".join(b"(" + b"h%c" % n * 9 * (n > 0) + b"lq%c" % (n + 1) for n in range(9)) + b".",
    "encodes": b"\x80\x02X\xff\x00\x00\x00" + b"x" * 255 + b"q\x00X\x06\x00\x00\x00latin1q\x010("
    b"" + b"c_codecs\nencode\nh\x00h\x01\x86R" * 1000 + b"l.",
    "long": b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
    "length": b"\x80\x02B\xff\xff\xff\xffabc.",
    "negative length": b"\x80\x02T\xff\xff\xff\xffabc.",
    "persistent": b"\x80\x02Pid\n.",
    "extension": b"\x80\x02\x82\x01.",
    "new object": b"\x80\x02cnumpy\nndarray\nK\x08\x85\x81.",
    "frame": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\xff].",
    "key": b"\x80\x02}]K\x01s.",
    "no memo": b"\x80\x02h\x00.",
    "no mark": b"\x80\x02t.",
    "mark": b"\x80\x02(.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused(name: str) -> None:
    assert HOSTILE[name] != ARRAY
    with pytest.raises(DataError, match=r"^here: expected a pickle of plain values and arrays only: ."):
        array_pickle.loads(HOSTILE[name], "here")


@given(content=st.binary(max_size=60).map(lambda tail: b"\x80\x02" + tail))
def test_bytes_are_a_plain_value_or_refused(content: bytes) -> None:
    with suppress(DataError):
        array_pickle.loads(content, "here")


@given(place=st.integers(0, len(ARRAY) - 1), piece=st.binary(max_size=4), cut=st.integers(0, 8))
def test_a_changed_array_is_an_array_or_refused(place: int, piece: bytes, cut: int) -> None:
    with suppress(DataError):
        array_pickle.loads(ARRAY[:place] + piece + ARRAY[place + cut :], "here")


def test_a_crop_is_the_middle() -> None:
    x = np.arange(36, dtype=np.uint8).reshape(1, 1, 6, 6)
    assert central_crop(x, 2).tolist() == [[[[14, 15], [20, 21]]]]


def test_standardised_images_have_mean_0_and_deviation_1_each(tmp_path: Path) -> None:
    FORMS["binary"](tmp_path / "cifar")
    data = ten(tmp_path / "cifar", crop=24, standardise=True)
    x, _ = data.train.client(0)
    assert (data.x.shape, data.x.dtype) == ((3, 24, 24), "float32")
    np.testing.assert_allclose(x.mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std((1, 2, 3)), 1, rtol=1e-5)


@given(value=st.integers(0, 255))
def test_an_even_image_becomes_zeros(value: int) -> None:
    assert not standardised(np.full((1, 3, 4, 4), value, np.uint8)).any()


def hundred(folder: Path, coarse: np.ndarray[tuple[int, ...], np.dtype[np.integer]] = COARSE) -> Path:
    both = {"train.bin": records(coarse, FINE, HUNDRED), "test.bin": records(COARSE[:100], FINE[:100], HUNDRED[:100])}
    packed(folder / "cifar-100-binary.tar.gz", both)
    return folder


def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path) -> None:
    root = str(hundred(tmp_path))
    fine, coarse = (prepare(Cifar100(clients=1, root=root, labels=which), seed=0) for which in ("fine", "coarse"))
    np.testing.assert_array_equal(fine.train.client(0)[1], FINE)
    np.testing.assert_array_equal(coarse.train.client(0)[1], COARSE)
    assert (fine.num_classes, coarse.num_classes) == (100, 20)


def test_the_python_archive_of_cifar100(tmp_path: Path) -> None:
    def batch(rows: slice) -> bytes:
        labels = {b"fine_labels": FINE[rows].tolist(), b"coarse_labels": COARSE[rows].tolist()}
        return python2({**labels, b"data": HUNDRED[rows]})

    packed(tmp_path / "py" / "cifar-100-python.tar.gz", {"train": batch(slice(200)), "test": batch(slice(100))})
    both = [
        prepare(Cifar100(clients=1, root=str(root)), seed=0) for root in (tmp_path / "py", hundred(tmp_path / "bin"))
    ]
    assert both[0].fingerprint == both[1].fingerprint


def test_pachinko_divides_by_the_hierarchy_and_by_nothing_else(tmp_path: Path) -> None:
    root = str(hundred(tmp_path))
    section = Cifar100.model_validate({"clients": 10, "root": root, "partition": {"name": "pachinko"}})
    assert prepare(section, seed=0).train.sizes().tolist() == [20] * 10
    coarse = section.model_copy(update={"labels": "coarse"})
    with pytest.raises(ExperimentError, match="'pachinko' needs coarse and fine labels"):
        prepare(coarse, seed=0)


def test_a_fine_label_has_one_coarse_label(tmp_path: Path) -> None:
    coarse = COARSE.copy()
    coarse[-1] = 0
    with pytest.raises(DataError, match="a fine label must have one coarse label, but 99 has 19 and 0"):
        prepare(Cifar100(clients=1, root=str(hundred(tmp_path, coarse))), seed=0)


def test_the_published_images(public: Callable[[str], Path]) -> None:
    names = {"train_files": ["data_batch_1.first4000.bin"], "test_files": ["test_batch.first1000.bin"]}
    section = Cifar10.model_validate({"clients": 1, "root": str(public("cifar10-subset")), **names})
    examples = cifar.open_cifar10(section).load()
    assert examples.train_y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert examples.train_x[0].reshape(-1)[[0, 1, 2, -3, -2, -1]].tolist() == [59, 43, 50, 140, 84, 72]
    assert np.bincount(examples.train_y).tolist() == [396, 366, 420, 384, 422, 393, 414, 385, 407, 413]
    assert np.bincount(examples.test_y).tolist() == [103, 89, 100, 103, 90, 86, 112, 102, 106, 109]
