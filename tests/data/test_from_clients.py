"""FederatedDataset.from_clients: what is accepted, what is inferred, and what is refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from raysim.data import FederatedDataset
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
    torch = pytest.importorskip("torch")
    as_tensor = FederatedDataset.from_clients({"a": (torch.from_numpy(X), torch.from_numpy(Y))})
    assert as_tensor.fingerprint == FederatedDataset.from_clients({"a": (X, Y)}).fingerprint
    assert FederatedDataset.from_clients({"a": ([[1.0], [2.0]], [0, 1])}).x.shape == (1,)


def test_a_tensor_with_gradients_is_named() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match="client 'a' of split 'train': x is not an array"):
        FederatedDataset.from_clients({"a": (torch.from_numpy(X).requires_grad_(), Y)})


def test_slices_of_one_array_in_order_are_not_copied() -> None:
    data = FederatedDataset.from_clients({"a": (X[:1], Y[:1]), "none": (X[1:2], Y[1:2]), "b": (X[2:], Y[2:])})
    for position in range(3):
        assert np.shares_memory(data.train.client(position)[0], X)
        assert np.shares_memory(data.train.client(position)[1], Y)


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
    "ragged": ({"train": {"a": ([[1], [1, 2]], Y[:2])}}, "client 'a' .* x is not an array"),
    "scalar": ({"train": {"a": (1.0, 2)}}, "client 'a' .* the first axis of x must count examples"),
    "no features": ({"train": {"a": (X[:, :0], Y)}}, "client 'a' .* every dimension .* must be at least 1"),
    "not a pair": ({"train": {"a": X[0]}}, r"client 'a' .* expected a pair \(x, y\)"),
    "negative label": (
        {"train": {"a": (X, Y)}, "test": {"t": (X, Y), "u": (X, Y - 1)}},
        "client 'u' of split 'test': an integer label must be at least 0, but one is -1",
    ),
    "same id twice": ({"train": {1: (X, Y), "1": (X, Y)}}, "split 'train' has '1' twice"),
    "id of another type": ({"train": {1.5: (X, Y)}}, "must be a str or an int, but split 'train' has 1.5"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_client_named(name: str) -> None:
    splits, message = REFUSED[name]
    with pytest.raises(DataError, match=message):
        FederatedDataset.from_clients(**splits)
