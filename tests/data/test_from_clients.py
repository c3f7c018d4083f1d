"""FederatedDataset.from_clients: what is accepted, what is inferred, and what is refused by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

from raysim.data import DatasetWriter, FederatedDataset, Field, batch
from raysim.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def test_positions_follow_the_order_of_the_mapping() -> None:
    data = FederatedDataset.from_clients({"zoe": (X[:1], Y[:1]), "adam": (X[1:], Y[1:])})
    assert [data.train.id_of(position) for position in range(2)] == ["zoe", "adam"]
    assert data.train.sizes().tolist() == [1, 3]


def test_ids_may_be_integers_and_become_text() -> None:
    data = FederatedDataset.from_clients({10: (X, Y), 2: (X, Y)})
    assert [data.train.id_of(0), data.train.id_of(1), data.train.position_of("2")] == ["10", "2", 1]


def test_classes_are_counted_over_all_splits() -> None:
    data = FederatedDataset.from_clients({"a": (X, Y)}, test={"a": (X[:1], np.array([6]))})
    assert data.num_classes == 7


def test_floating_targets_are_a_regression() -> None:
    data = FederatedDataset.from_clients({"a": (X, Y.astype(np.float64))})
    assert data.num_classes is None
    assert data.y.dtype == "float64"


def test_dtypes_are_kept() -> None:
    for dtype in ("float64", "float16", "uint8", "bool", ">f4"):
        data = FederatedDataset.from_clients({"a": (X.astype(dtype), Y)})
        assert data.x.dtype == np.dtype(dtype).name
        np.testing.assert_array_equal(data.train.client(0)[0], X.astype(dtype))


def test_lists_and_torch_tensors_are_taken() -> None:
    as_tensor = FederatedDataset.from_clients({"a": (torch.from_numpy(X), torch.from_numpy(Y))})
    assert as_tensor.fingerprint == FederatedDataset.from_clients({"a": (X, Y)}).fingerprint
    assert FederatedDataset.from_clients({"a": ([[1.0], [2.0]], [0, 1])}).x.shape == (1,)


def test_a_tensor_with_gradients_is_named() -> None:
    with pytest.raises(DataError, match="client 'a' of split 'train': x is not an array"):
        FederatedDataset.from_clients({"a": (torch.from_numpy(X).requires_grad_(), Y)})


def fixed(array: Any) -> Any:
    array = array.copy()
    array.flags.writeable = False
    return array


def test_slices_in_order_of_a_read_only_array_are_not_copied() -> None:
    x, y = fixed(X), fixed(Y)
    data = FederatedDataset.from_clients({"a": (x[:1], y[:1]), "none": (x[1:2], y[1:2]), "b": (x[2:], y[2:])})
    for position in range(3):
        assert np.shares_memory(data.train.client(position)[0], x)
        assert np.shares_memory(data.train.client(position)[1], y)


def read_only_view(array: Any) -> Any:
    view = array[:]
    view.flags.writeable = False
    return view


def mapped(array: Any, path: Path) -> Any:
    np.save(path, array)
    return np.load(path, mmap_mode="r+")


SHARED: dict[str, Callable[[Any, Path], Any]] = {
    "an array": lambda array, path: array,
    "slices": lambda array, path: array[:],
    "a read-only view": lambda array, path: read_only_view(array),
    "a tensor": lambda array, path: torch.from_numpy(array),
    "a file": mapped,
}


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("kind", SHARED)
def test_what_a_script_changes_later_changes_no_example(kind: str, clients: int, tmp_path: Path) -> None:
    own = X.copy(), Y.copy()
    x, y = (SHARED[kind](array, tmp_path / f"{i}.npy") for i, array in enumerate(own))
    size = 4 // clients
    each = {k: (x[k * size :][:size], y[k * size :][:size]) for k in range(clients)}
    data = FederatedDataset.from_clients(each)
    for array in (x, y) if kind in ("a tensor", "a file") else own:
        array[:] = 0
    for k in range(clients):
        np.testing.assert_array_equal(data.train.client(k)[0], X[k * size :][:size])
        np.testing.assert_array_equal(data.train.client(k)[1], Y[k * size :][:size])


def test_the_examples_of_a_dataset_are_read_only() -> None:
    data = FederatedDataset.from_clients({"a": (X.copy(), Y.copy())})
    with pytest.raises(ValueError, match="read-only"):
        data.train.arrays().x[0] = 0  # type: ignore[union-attr]


class Site(str, Enum):  # noqa: UP042 - `StrEnum` has no other text
    """An enum of texts, whose str() is its member's name."""

    HERE = "here"


def test_ids_of_an_enum_are_its_texts() -> None:
    clients: dict[str, Any] = {Site.HERE: (X, Y)}
    data = FederatedDataset.from_clients(clients)
    assert (data.train.id_of(0), data.train.position_of(Site.HERE)) == ("here", 0)
    assert data.fingerprint == FederatedDataset.from_clients({"here": (X, Y)}).fingerprint


def test_a_masked_array_without_masked_values_is_taken() -> None:
    data = FederatedDataset.from_clients({"a": (np.ma.masked_array(X, mask=X > 99), Y)})
    np.testing.assert_array_equal(data.train.client(0)[0], X)


@pytest.mark.parametrize("parts", [(X[2:], X[:2]), (X[:1], X[2:]), (X[:2].copy(), X[2:]), (X[:2, :2], X[2:, 1:])])
def test_other_arrays_are_put_side_by_side(parts: tuple[Any, Any]) -> None:
    data = FederatedDataset.from_clients({k: (part, np.zeros(len(part), int)) for k, part in enumerate(parts)})
    for position, part in enumerate(parts):
        np.testing.assert_array_equal(data.train.client(position)[0], part)


def test_an_evaluation_client_may_be_empty() -> None:
    data = FederatedDataset.from_clients({"a": (X, Y)}, test={"a": (X[:0], Y[:0]), "b": (X, Y)})
    assert data.split("test").sizes().tolist() == [0, 4]


def test_absent_and_empty_splits_do_not_exist() -> None:
    data = FederatedDataset.from_clients({"a": (X, Y)}, test={}, validation={"v": (X, Y)})
    assert data.test is None
    with pytest.raises(DataError, match="no split 'test' in this dataset; it has: train, validation"):
        data.split("test")
    for word in ("val", "dev", "validatoin"):
        with pytest.raises(DataError, match=r"\(did you mean 'validation'\?\)$"):
            data.split(word)
    with pytest.raises(DataError, match=r"it has: train; data.holdout, or .*, makes the split 'validation'$"):
        FederatedDataset.from_clients({"a": (X, Y)}).split("val")


def test_nan_is_a_value_like_any_other() -> None:
    data = FederatedDataset.from_clients({"a": (np.full((4, 3), np.nan), Y)})
    assert np.isnan(data.train.client(0)[0]).all()


def test_the_fingerprint_is_of_the_content() -> None:
    data = FederatedDataset.from_clients({"a": (X, Y), "b": (X, Y)})
    same = FederatedDataset.from_clients({"a": (X.copy(), Y.copy()), "b": (X[::1], Y)})
    assert data.fingerprint == same.fingerprint == pickle.loads(pickle.dumps(data)).fingerprint
    others = [
        FederatedDataset.from_clients({"b": (X, Y), "a": (X, Y)}),
        FederatedDataset.from_clients({"a": (X, Y), "c": (X, Y)}),
        FederatedDataset.from_clients({"a": (X[:3], Y[:3]), "b": (np.r_[X[3:], X], np.r_[Y[3:], Y])}),
        FederatedDataset.from_clients({"a": (X, Y), "b": (X + 1, Y)}),
        FederatedDataset.from_clients({"a": (X, Y), "b": (X, Y[::-1])}),
        FederatedDataset.from_clients({"a": (X.astype(np.float64), Y), "b": (X.astype(np.float64), Y)}),
        FederatedDataset.from_clients({"a": (X, Y)}, test={"b": (X, Y)}),
        FederatedDataset.from_clients({"a": (X, Y)}, validation={"b": (X, Y)}),
    ]
    assert len({data.fingerprint, *(other.fingerprint for other in others)}) == 1 + len(others)


class Raising:
    """An object that numpy asks for its array."""

    def __array__(self, *args: Any, **named: Any) -> Any:
        raise KeyError("none")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no training client": ({"train": {}}, "split 'train' must have at least one client"),
    "lengths": ({"train": {"a": (X, Y[:3])}}, "client 'a' of split 'train': .* x has 4 and y has 3"),
    "empty training client": ({"train": {"a": (X[:0], Y[:0])}}, "client 'a' of split 'train': .* at least one example"),
    "shapes": (
        {"train": {"a": (X, Y), "b": (X[:, :2], Y)}},
        r"client 'b' .* here float32\[3\] .* has float32\[2\]",
    ),
    "dtypes": (
        {"train": {"a": (X, Y)}, "test": {"t": (X.astype(int), Y)}},
        r"'t' of split 'test': .* int64\[3\]",
    ),
    "target dtypes": ({"train": {"a": (X, Y), "b": (X, Y.astype(np.int32))}}, r"client 'b' .* y .* has int32\[\]"),
    "objects": ({"train": {"a": (np.array([{}, {}]), Y[:2])}}, "client 'a' .* x must hold numbers .* but it is object"),
    "text": ({"train": {"a": (np.array(["u", "v"]), Y[:2])}}, "client 'a' .* x must hold numbers"),
    "texts as inputs": ({"train": {"a": (np.array(["u", "v"]), Y[:2])}}, r"x must hold .* <U1: texts in x are made"),
    "texts as labels": ({"train": {"a": (X[:2], np.array(["u", "v"]))}}, r"y must hold .* <U1: np.unique.* of texts"),
    "ragged": ({"train": {"a": ([[1], [1, 2]], Y[:2])}}, "client 'a' .* x is not an array"),
    "scalar": ({"train": {"a": (1.0, 2)}}, "client 'a' .* the first axis of x must count examples"),
    "no features": ({"train": {"a": (X[:, :0], Y)}}, "client 'a' .* every dimension .* must be at least 1"),
    "not a pair": ({"train": {"a": X[0]}}, r"client 'a' .* expected a pair \(x, y\)"),
    "two rows": ({"train": {"a": X[:2]}}, r"client 'a' .* expected a pair \(x, y\), but got ndarray"),
    "three values": ({"train": {"a": (X, Y, Y)}}, r"client 'a' .* expected a pair \(x, y\), but got 3 values"),
    "a mapping of x and y": ({"train": {"a": {"x": X, "y": Y}}}, r"expected a pair \(x, y\), but got dict"),
    "a dict of splits": ({"train": {"train": {"a": (X, Y)}}}, r"expected a pair \(x, y\), but got dict"),
    "no split": ({"train": None}, "split 'train' must be a mapping from client ids .* but got NoneType"),
    "a list": ({"train": [(X, Y)]}, r"split 'train' must be a mapping .* dict\(enumerate\(pairs\)\), but got list"),
    "a generator": ({"train": ((X, Y) for _ in "ab")}, "split 'train' must be a mapping .* but got generator"),
    "a list of test clients": ({"train": {"a": (X, Y)}, "test": [(X, Y)]}, "split 'test' must be a mapping"),
    "masked": (
        {"train": {"a": (np.ma.masked_array(X, mask=X > 7), Y)}},
        r"client 'a' .* x has 4 masked values.*x\.filled",
    ),
    "masked labels": ({"train": {"a": (X, np.ma.masked_array(Y, mask=Y == 0))}}, "client 'a' .* y has 1 masked values"),
    "masked rows": (
        {"train": {"a": ([np.ma.masked_array(np.zeros(3), mask=True)], [0])}},
        "client 'a' .* x has 3 masked values",
    ),
    "masked values in lists of lists": (
        {"train": {"a": ([[np.ma.masked_array([1.0, 2.0], mask=[True, False])]], [0])}},
        "client 'a' .* x has 1 masked values",
    ),
    "nulls": (
        {"train": {"a": (X, pa.array([0, 1, None, *range(len(Y) - 3)]))}},
        r"client 'a' .* y has nulls, the first one in row 2, .*drop_null\(\), or fill them, by fill_null",
    ),
    "nulls in pieces": (
        {"train": {"a": (X[:4], pa.chunked_array([[0.5, 1.0], [1.5, None]]))}},
        "y has nulls, the first one in row 3",
    ),
    "nulls in a table": (
        {"train": {"a": (pa.table({"u": [1.0, 2.0], "v": [3.0, None]}), Y[:2])}},
        "x has nulls, the first one in row 1",
    ),
    "nulls in a list": (
        {"train": {"a": ([pa.array([1.0, 2.0]), pa.array([3.0, None])], Y[:2])}},
        "x has nulls, the first one in row 1",
    ),
    "nulls in lists of lists": (
        {"train": {"a": ([[pa.array([1.0])], [pa.array([None], pa.float64())]], Y[:2])}},
        "x has nulls, the first one in row 1",
    ),
    "nested": (
        {"train": {"a": (torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged), Y[:2])}},
        r"client 'a' .* x is a nested tensor, .*: pad them, by torch.nested.to_padded_tensor\(x, 0\)",
    ),
    "surrogate": ({"train": {"\ud800": (X, Y)}}, "must be text that UTF-8 can hold"),
    "surrogate in test": ({"train": {"a": (X, Y)}, "test": {"\udfff": (X, Y)}}, "must be text that UTF-8 can hold"),
    "an array that raises": ({"train": {"a": (Raising(), Y)}}, "client 'a' .* x is not an array: KeyError: 'none'"),
    "an iterator": ({"train": {"a": (iter(X), Y)}}, r"x is a scalar \(iterator\)"),
    "a label that is an id": ({"train": {"a": (X, Y + 2**40)}}, "integer label must be at most 16777216"),
    "negative label": (
        {"train": {"a": (X, Y)}, "test": {"t": (X, Y), "u": (X, Y - 1)}},
        "client 'u' of split 'test': an integer label must be at least 0, but one is -1",
    ),
    "numbers above int64": (
        {"train": {"a": (np.full((5, 2), 2**63, np.uint64), Y[:5])}},
        "client 'a' .* x has whole numbers up to 9223372036854775808, and models are given them as int64",
    ),
    "same id twice": ({"train": {1: (X, Y), "1": (X, Y)}}, "split 'train' has '1' twice"),
    "id of another type": ({"train": {1.5: (X, Y)}}, "must be a str or an int, but split 'train' has 1.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_client_named(name: str) -> None:
    splits, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        FederatedDataset.from_clients(**splits)


DATA = FederatedDataset.from_clients({"a": (X, Y), "b": (X, Y)})

ASKED: dict[str, tuple[Callable[[], Any], str]] = {
    "a client by its id": (lambda: DATA.train.client("a"), r"got 'a': position_of\(id\)"),  # type: ignore[arg-type]
    "a position by a number": (lambda: DATA.train.position_of(3), "id is text, but got 3"),  # type: ignore[arg-type]
    "a share in words": (lambda: DATA.hold_out("half"), r"must be in \(0, 1\), but got 'half'"),  # type: ignore[arg-type]
    "a seed in words": (lambda: DATA.hold_out(0.5, "x"), "seed .* whole number, but got 'x'"),  # type: ignore[arg-type]
    "a seed with a fraction": (lambda: DATA.hold_out(0.5, 1.0), r"whole number, but got 1\.0"),  # type: ignore[arg-type]
    "no path": (lambda: FederatedDataset.open(None), "path or URI, but got None"),  # type: ignore[arg-type]
    "no training clients": (lambda: replace(DATA, train=None), "train is None"),  # type: ignore[arg-type]
    "half a dimension": (lambda: Field((2.5,), "float32"), "tuple of whole numbers"),  # type: ignore[arg-type]
    "a list of dimensions": (lambda: Field([2], "float32"), "tuple of whole numbers"),  # type: ignore[arg-type]
    "a scale that is not a number": (lambda: Field((2,), "float32", scale=float("nan")), "must be finite"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_asked_in_the_wrong_words_is_said(name: str) -> None:
    call, message = ASKED[name]
    with pytest.raises(DataError, match=message):
        call()


def test_a_batch_is_what_a_module_sees(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    with DatasetWriter(tmp_path / "d", Field((4,), "uint8", 0.5, -1.0), Field((), "uint8"), 3) as writer:
        writer.write("train", "a", pixels[:1], np.zeros(1, np.uint8))
        writer.write("train", "b", pixels[1:], np.array([1, 2], np.uint8))
    dataset = FederatedDataset.open(tmp_path / "d")
    x, y = batch(dataset, "train", 1)
    assert x.tolist() == (pixels[1:] * 0.5 - 1).tolist()
    assert (x.dtype, y.dtype, y.tolist()) == (torch.float32, torch.int64, [1, 2])


def test_labels_that_begin_at_1_are_said(caplog: pytest.LogCaptureFixture) -> None:
    FederatedDataset.from_clients({"a": (X, Y + 1), "b": (X[:1], Y[1:2])}, test={"t": (X, Y + 1)})
    assert "labels go from 1 to 3, and classes are counted from 0" in caplog.text
    assert "the model has 4 outputs" in caplog.text


@pytest.mark.parametrize("y", [Y, Y + 2, np.ones(4, np.int64), np.stack([Y + 1, Y + 1], axis=1)])
def test_other_labels_are_not(y: Any, caplog: pytest.LogCaptureFixture) -> None:
    FederatedDataset.from_clients({"a": (X, y)})
    assert not caplog.records


def test_one_hot_targets_are_said_to_be_a_regression(caplog: pytest.LogCaptureFixture) -> None:
    FederatedDataset.from_clients({"a": (X, np.eye(3, dtype=np.float32)[Y])})
    assert "pass the labels, y.argmax(axis=1)" in caplog.text


@pytest.mark.parametrize("y", [np.eye(3)[Y] * 0.5, np.ones((4, 1)), np.ones((4, 3))])
def test_other_floating_targets_are_not(y: Any, caplog: pytest.LogCaptureFixture) -> None:
    FederatedDataset.from_clients({"a": (X, y)})
    assert not caplog.records


class Lender:
    """Lends an array's memory by NumPy's interface, for reading."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, True)}


VIEWS: dict[str, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    "windows one behind the other": lambda flat: np.lib.stride_tricks.as_strided(
        flat, (8, 2), (16, 8), writeable=False
    ),
    "sliding windows": lambda flat: np.lib.stride_tricks.sliding_window_view(flat, 9),
    "a sliding window of one number": lambda flat: np.lib.stride_tricks.sliding_window_view(flat, 1),
    "memory that another object lends": lambda flat: np.asarray(Lender(flat)).reshape(8, 2),
    "a view of a buffer": lambda flat: np.frombuffer(memoryview(flat.data).toreadonly()).reshape(8, 2),
    "numbers of a tensor": lambda flat: fixed_in_place(torch.from_numpy(flat).numpy()).reshape(8, 2),
}


def fixed_in_place(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("kind", VIEWS)
def test_windows_over_an_array_do_not_follow_it(kind: str) -> None:
    flat = np.arange(16.0)
    rows = VIEWS[kind](flat)
    assert not rows.flags.writeable
    y, half = np.arange(len(rows)) % 2, len(rows) // 2
    data = FederatedDataset.from_clients({"a": (rows[:half], y[:half]), "b": (rows[half:], y[half:])})
    before = [data.train.client(position)[0].copy() for position in (0, 1)]
    flat += 1
    for position in (0, 1):
        np.testing.assert_array_equal(data.train.client(position)[0], before[position])


def test_what_nobody_can_write_to_is_shared(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((8, 2)))
    y = fixed_in_place(np.arange(8) % 2)
    for x in (np.load(tmp_path / "x.npy", mmap_mode="r"), np.frombuffer(bytes(8 * 16)).reshape(8, 2)):
        data = FederatedDataset.from_clients({"a": (x[:4], y[:4]), "b": (x[4:], y[4:])})
        assert np.shares_memory(data.train.client(1)[0], x)
